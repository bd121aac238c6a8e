// What engines on the simulated accelerator do on streams of their own, beside what they compute.
#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <map>

#include "device/engines.h"
#include "device/linked.h"
#include "ranks/torch_optimizers.h"

namespace zero::test::streams_test {

class StreamsOfEngines : public ModelsOnDevices {
 protected:
  static Outcome run(const Plan& plan, int ranks = 2) {
    return train<Lm>({.plan = plan, .ranks = ranks, .options = {.clip = 0.5}, .joined = linked},
                     lm_on(accelerator::kType, 0.1));
  }
};

// Tasks of all streams run when chance has them run.
TEST_F(StreamsOfEngines, HaveTheSameBitsWhateverTheDelays) {
  const std::uint64_t seeds = std::getenv("ZERO_TEST_LONG") != nullptr ? 200 : 6;
  std::vector<Plan> plans = all_plans();
  plans.push_back(Plan::zero3().precision(Precision::fp8));
  for (const Plan& plan : plans) {
    SCOPED_TRACE(plan.label() + " in " + std::string(name(plan.precision())));
    accelerator::set_mode(accelerator::Mode::lazy);
    const Outcome expected = run(Plan(plan).accumulate(2));
    for (std::uint64_t seed = 0; seed < seeds; ++seed) {
      accelerator::set_mode(accelerator::Mode::random, seed);
      EXPECT_EQ(difference(expected, run(Plan(plan).accumulate(2))), "") << "seed " << seed;
    }
  }
}

TEST_F(StreamsOfEngines, NeedTheWaitsOfEverySite) {
  const bool each = std::getenv("ZERO_TEST_LONG") != nullptr;
  std::map<accelerator::Site, std::int64_t> needed;
  for (const Plan& plan : all_plans()) {
    accelerator::reset();
    const Outcome expected = run(plan);
    for (const auto site : {accelerator::Site::begin, accelerator::Site::join, accelerator::Site::follow}) {
      const auto leave_out = [&](std::optional<std::int64_t> number) {
        accelerator::reset();
        accelerator::set_race_faults(true);
        accelerator::count_faults();
        accelerator::leave_out(site, number);
        return noticed(expected, [&] { return run(plan); });
      };
      EXPECT_TRUE(leave_out({})) << plan.label() << ", site " << static_cast<int>(site);
      const std::int64_t waits = each ? accelerator::waits(site) : 0;
      for (std::int64_t wait = 0; wait < waits; ++wait) needed[site] += leave_out(wait) ? 1 : 0;
    }
  }
  // Others follow on waits that are not left out.
  for (const auto& [site, waits] : needed) EXPECT_GT(waits, 20) << "site " << static_cast<int>(site);
}

// What the host waits for in a step: the sums of the vote, nothing else, on whatever thread.
TEST_F(StreamsOfEngines, KeepTheHostWaitingOnceAStep) {
  const auto waits = [](const Job& job) {
    const std::int64_t before = accelerator::synchronisations();
    train<Lm>(job, lm_on(accelerator::kType, 0.1));
    return accelerator::synchronisations() - before;
  };
  const Optimizer torchs = brought<torch::optim::AdamW>(torch::optim::AdamWOptions(), "AdamW");
  const std::vector<std::pair<Optimizer, Precision>> settings{
      {AdamW{}, Precision::fp32}, {AdamW{}, Precision::fp8}, {torchs, Precision::bf16}};
  for (const auto& [optimizer, precision] : settings)
    for (const int ranks : {1, 2})
      for (const Plan& plan : all_plans()) {
        SCOPED_TRACE(plan.label() + " on " + std::to_string(ranks) + ", " + std::string(name(optimizer)) + " in " +
                     std::string(name(precision)));
        Job job{.plan = Plan(plan).precision(precision),
                .ranks = ranks,
                .optimizer = optimizer,
                .options = {.clip = 0.5},
                .joined = linked};
        job.steps = 1;
        const std::int64_t one = waits(job);
        job.steps = 4;
        EXPECT_EQ(waits(job) - one, 3 * ranks);
      }
}

}  // namespace zero::test::streams_test
