// Optimizers and meshes on the simulated accelerator.
#include <gtest/gtest.h>

#include "device/engines.h"
#include "optimizers.h"

namespace zero::test {
namespace {

// Those that go element by element, in all their forms.
std::vector<Optimizer> optimizers() {
  std::vector<Optimizer> all = every_optimizer();
  for (const std::vector<Optimizer>& more : {narrow_moments(), our_own_options()})
    all.insert(all.end(), more.begin(), more.end());
  return all;
}

class OptimizersOnADevice : public ModelsOnDevices,
                            public testing::WithParamInterface<std::tuple<std::size_t, int, Precision>> {};

TEST_P(OptimizersOnADevice, HaveTheSameBitsUnderEveryPlan) {
  const auto& [which, ranks, precision] = GetParam();
  const Course<Lm> course = lm_on(accelerator::kType, 0.1);
  const auto run = [&](const Plan& plan) {
    return train<Lm>({.plan = plan.precision(precision),
                      .ranks = ranks,
                      .optimizer = optimizers()[which],
                      .options = {.clip = 1, .groups = {no_decay_on_norms_biases_embeddings()}}},
                     course);
  };
  const Outcome expected = run(Plan::ddp());
  EXPECT_EQ(difference(expected, run(Plan::zero3())), "");
  EXPECT_EQ(difference(expected, run(Plan::zero1())), "");
}

std::string title_of_optimizers(const testing::TestParamInfo<OptimizersOnADevice::ParamType>& tested) {
  const auto& [which, ranks, precision] = tested.param;
  return std::to_string(which) + in_title(std::string(name(optimizers()[which]))) + "On" + std::to_string(ranks) +
         in_title(std::string(name(precision)));
}

INSTANTIATE_TEST_SUITE_P(All, OptimizersOnADevice,
                         testing::Combine(testing::Range(std::size_t{0}, optimizers().size()), testing::Values(1, 3),
                                          testing::Values(Precision::fp32, Precision::bf16)),
                         title_of_optimizers);

class MeshesOnADevice : public ModelsOnDevices, public testing::WithParamInterface<Precision> {};

TEST_P(MeshesOnADevice, HaveTheBitsOfOneGroup) {
  const Course<Lm> course = lm_on(accelerator::kType, 0.1);
  const auto run = [&](const Plan& plan, int shard) {
    return train<Lm>({.plan = plan.precision(GetParam()), .ranks = 4, .options = {.clip = 0.5}, .shard = shard},
                     course);
  };
  const Outcome expected = run(Plan::ddp(), 0);
  for (const Plan& plan : plans_of_meshes()) EXPECT_EQ(difference(expected, run(plan, 2)), "") << plan.label();
}

INSTANTIATE_TEST_SUITE_P(All, MeshesOnADevice, testing::Values(Precision::fp32, Precision::bf16, Precision::bf16_kahan),
                         [](const auto& tested) { return in_title(std::string(name(tested.param))); });

}  // namespace
}  // namespace zero::test
