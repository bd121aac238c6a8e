// Trainings drawn at random: under each plan, from whatever tier, whatever happens in between, they have the bits that
// the documentation promises, and give what plain LibTorch gives. Seeds 1 to 20, or to 300 with ZERO_TEST_LONG=1.
// Others: ZERO_FUZZ_SEED=1000 alone is one, with ZERO_FUZZ_COUNT=200 those from it on; ZERO_FUZZ_VERBOSE=1 prints each
// scenario, and how it went. One that fails is printed with its seed, and as small as it can be made.
#include <gtest/gtest.h>

#include <cstdlib>
#include <iostream>
#include <string>

#include "covering.h"
#include "ranks/scenario/judge.h"

namespace zero::test::scenario {
namespace {

std::uint64_t number_of(const char* variable, std::uint64_t otherwise) {
  const char* const text = std::getenv(variable);
  return text == nullptr || *text == 0 ? otherwise : std::stoull(text);
}

void report(const Scenario& scenario, Verdict verdict) {
  const std::string seed = "seed " + std::to_string(scenario.seed);
  std::cerr << seed << " fails: " << verdict.text << "\n" << print(scenario) << "made smaller...\n";
  const std::string first = verdict.text;
  const Scenario least = shrink(scenario, verdict);
  ADD_FAILURE() << seed << ": " << verdict.text << "\n" << print(least) << "at first: " << first;
}

TEST(Scenarios, HaveTheBitsThatAreDocumented) {
  const std::uint64_t begin = number_of("ZERO_FUZZ_SEED", 1);
  const bool given = std::getenv("ZERO_FUZZ_SEED") != nullptr;
  const std::uint64_t count = number_of("ZERO_FUZZ_COUNT", given ? 1 : long_tests() ? 300 : 20);
  const bool verbose = std::getenv("ZERO_FUZZ_VERBOSE") != nullptr;
  int drawn_anew = 0;
  std::uint64_t refused = 0;
  for (std::uint64_t seed = begin; seed < begin + count; ++seed) {
    const Scenario scenario = draw(seed, drawn_anew);
    if (verbose) std::cerr << "seed " << seed << "\n" << print(scenario);
    const Verdict verdict = judge(scenario, std::chrono::seconds(120));
    if (verbose) std::cerr << (verdict.text.empty() ? "good" : verdict.text) << "\n";
    refused += verdict.kind == Verdict::Kind::refused ? 1 : 0;
    if (verdict.failed()) report(scenario, verdict);
  }
  EXPECT_LE(refused * 10, count * 4 + 10) << "too few of the scenarios can run";
  if (verbose || given)
    std::cerr << count - refused << " of " << count << " ran; " << drawn_anew << " choices of plans were drawn anew\n";
}

}  // namespace
}  // namespace zero::test::scenario
