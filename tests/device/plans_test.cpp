// Optimizers and meshes on the simulated accelerator.
#include <gtest/gtest.h>

#include "device/engines.h"
#include "device/linked.h"
#include "optimizers.h"

namespace zero::test::plans_test {

std::vector<Optimizer> optimizers() {
  std::vector<Optimizer> all = every_optimizer();
  for (const std::vector<Optimizer>& more : {narrow_moments(), our_own_options(), whole_optimizers()})
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
    return train<Lm>({.plan = plan.precision(GetParam()),
                      .ranks = 4,
                      .options = {.clip = 0.5},
                      .shard = shard,
                      .joined = shard == 0 ? sharing_devices : linked},
                     course);
  };
  const Outcome expected = run(Plan::ddp(), 0);
  for (const Plan& plan : plans_of_meshes()) EXPECT_EQ(difference(expected, run(plan, 2)), "") << plan.label();
}

INSTANTIATE_TEST_SUITE_P(All, MeshesOnADevice, testing::Values(Precision::fp32, Precision::bf16, Precision::bf16_kahan),
                         [](const auto& tested) { return in_title(std::string(name(tested.param))); });

// A group in which every rank has a device of its own is joined for it; where two share one, all go through the host.
TEST_F(ModelsOnDevices, HaveTheSameBitsHoweverTheyAreJoined) {
  const Course<Lm> course = lm_on(accelerator::kType, 0.1);
  for (const Plan& plan : all_plans()) {
    const auto run = [&](const auto& joined) {
      return train<Lm>({.plan = plan, .ranks = 4, .joined = joined}, course);
    };
    const Outcome expected = run(Job{}.joined);
    EXPECT_EQ(difference(expected, run(linked)), "");
    EXPECT_EQ(difference(expected, run(sharing_devices)), "");
  }
}

constexpr std::int64_t kRows = 11;

struct Tables : torch::nn::Module {
  at::Tensor loss(std::int64_t index) {
    const at::Tensor ids = tokens(index, {4, 5}, kRows).to(out->weight.device());
    const at::Tensor x = table(ids).sum(1) + numbers(index, {4, 6}).to(out->weight.device());
    return out(x).to(at::kFloat).square().mean();
  }
  torch::nn::Embedding table =
      register_module("table", torch::nn::Embedding(torch::nn::EmbeddingOptions(kRows, 6).max_norm(0.35)));
  torch::nn::Linear out = register_module("out", torch::nn::Linear(6, 3));
};

TEST_F(ModelsOnDevices, HaveEmbeddingsWithALargestNorm) {
  const Course<Tables> course = course_on<Tables>(accelerator::kType);
  for (World (*const joined)(const World&) : {sharing_devices, linked}) {
    const Job job{.ranks = 3, .optimizer = Sgd{.lr = 0.1, .momentum = 0.9}, .steps = 5, .joined = joined};
    const Outcome expected = train<Tables>(job, course);
    under_every_plan(job, [&](const Job& each) { EXPECT_EQ(difference(expected, train<Tables>(each, course)), ""); });
    EXPECT_EQ(difference(expected, train<Tables>(job), 1e-5), "");
  }
}

}  // namespace zero::test::plans_test
