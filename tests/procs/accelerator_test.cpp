// Processes as ranks on the simulated accelerator: what they exchange goes through the host's memory.
#include <gtest/gtest.h>

#include "procs/zero_program.h"

namespace accelerator_test {

using procs::kZero;
using procs::Result;
using procs::run;
using procs::Words;

std::string lines_of(int ranks, const std::string& plan, const std::string& precision, const Words& before = {}) {
  Words words = before;
  for (const std::string& word : {std::string(kZero), std::string("launch"), std::string("--no-prefix"),
                                  "-n" + std::to_string(ranks), std::string(ZERO_DEVICE_RANK), plan, precision})
    words.push_back(word);
  const Result result = run(words);
  EXPECT_EQ(result.code, 0) << plan << " on " << ranks << ": " << result.err;
  EXPECT_EQ(std::count(result.out.begin(), result.out.end(), '\n'), 5) << result.out;
  return result.out;
}

TEST(ProcessesOnAnAccelerator, HaveTheSameBitsUnderEveryPlan) {
  for (const int ranks : {1, 2, 3, 4})
    for (const char* precision : {"fp32", "bf16"}) {
      const std::string expected = lines_of(ranks, "ddp", precision);
      for (const char* plan : {"zero1", "zero2", "zero3"})
        EXPECT_EQ(lines_of(ranks, plan, precision), expected) << plan << " on " << ranks;
    }
}

TEST(ProcessesOnAnAccelerator, HaveTheSameBitsOverSockets) {
  EXPECT_EQ(lines_of(2, "zero3", "fp32", {"env", "ZERO_TRANSPORT=gloo"}), lines_of(2, "ddp", "fp32"));
}

}  // namespace accelerator_test
