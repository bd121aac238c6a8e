// `--device`: where commands train and evaluate, and what they say where there is no such device.
#include <gtest/gtest.h>

#include <algorithm>

#include "procs/zero_program.h"
#include "zero/devices.h"

namespace device_test {

using procs::contains;
using procs::Folder;
using procs::joined;
using procs::kZero;
using procs::Result;
using procs::run;
using procs::Words;
using procs::zero;

TEST(Devices, TheCpuGivesWhatIsGivenWithoutADevice) {
  if (zero::usual_device() != c10::kCPU) GTEST_SKIP() << "there is a GPU";
  const Folder folder;
  const auto report_of = [&](const Words& more) {
    const Result result = run(zero(
        joined(joined({"train", "--ranks", "2"}, folder.small({"--steps", "3", "--json", folder.path("out")})), more)));
    EXPECT_EQ(result.code, 0) << result.err;
    EXPECT_TRUE(contains(result.out, "2 ranks on cpu, ")) << result.out;
    return folder.document("out");
  };
  const auto usual = report_of({}), given = report_of({"--device", "cpu"});
  EXPECT_EQ(usual.at("runs").at(0).at("losses"), given.at("runs").at(0).at("losses"));
  for (const auto& report : {usual, given}) {
    EXPECT_EQ(report.at("device"), "cpu");
    EXPECT_TRUE(contains(report.at("command"), " --device cpu")) << report.at("command");
  }
}

TEST(Devices, AreSaidByCompare) {
  const Folder folder;
  const Result result = run(zero(joined({"compare", "--ranks", "2", "--plans", "ddp,zero3", "--device", "cpu"},
                                        folder.small({"--steps", "2", "--json", folder.path("out")}))));
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_TRUE(result.out.starts_with("2 ranks on cpu, ")) << result.out;
  EXPECT_EQ(folder.document("out").at("device"), "cpu");
}

// Before ranks are started, and by those that a launcher did.
TEST(Devices, ThatAreNotThereAreRefused) {
  if (zero::device_count(c10::kCUDA) > 0) GTEST_SKIP() << "there is a GPU";
  const Folder folder;
  for (const Words& command : {Words{"train", "--ranks", "2"}, {"compare"}, {"train"}}) {
    const Result result = run(zero(joined(joined(command, folder.small({})), {"--device", "cuda"})));
    EXPECT_EQ(result.code, 2);
    EXPECT_TRUE(result.err.starts_with("zero: --device: ")) << result.err;
    for (const char* said : {"'cuda'", ": this host has the CPU; ", "--help\n"})
      EXPECT_TRUE(contains(result.err, said)) << result.err;
    EXPECT_EQ(std::ranges::count(result.err, '\n'), 1) << result.err;
    EXPECT_EQ(result.out, "");
  }
  const Result measured = run(zero({"bench", "profile", "--device", "cuda", "--out", folder.path("profile")}));
  EXPECT_EQ(measured.code, 2);
  EXPECT_TRUE(measured.err.starts_with("zero: --device: ")) << measured.err;
  EXPECT_TRUE(contains(measured.err, ": this host has the CPU; ")) << measured.err;
  const Result launched =
      run(zero(joined({"launch", "-n", "2", kZero, "train", "--device", "cuda"}, folder.small({}))));
  EXPECT_EQ(launched.code, 2);
  EXPECT_TRUE(contains(launched.err, ": --device: ")) << launched.err;
}

}  // namespace device_test
