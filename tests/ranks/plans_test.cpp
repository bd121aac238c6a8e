// Plans compute what torch::optim computes.
#include <torch/torch.h>

#include "covering.h"
#include "lm.h"

namespace zero::test::plans_test {

Options clipped_groups() {
  return {.clip = 0.5, .seed = 3, .groups = {no_decay_on_norms_biases_embeddings()}, .schedule = [](std::int64_t step) {
            return 1.0 / static_cast<double>(1 + step);
          }};
}

struct Recipe {
  const char* name;
  Optimizer optimizer;
  Options options;
};

const std::vector<Recipe>& recipes() {
  static const std::vector<Recipe> all{
      {"AdamW", AdamW{.lr = 2e-3, .eps = 1e-4, .weight_decay = 0.1}, {}},
      {"AdamWClippedInGroups", AdamW{.lr = 2e-3, .eps = 1e-4, .weight_decay = 0.1}, clipped_groups()},
      {"Sgd", Sgd{.lr = 0.1}, {}},
      {"SgdMomentumClippedInGroups", Sgd{.lr = 0.1, .momentum = 0.9, .weight_decay = 0.1}, clipped_groups()},
      {"SgdNesterov", Sgd{.lr = 0.1, .momentum = 0.9, .weight_decay = 0.1, .nesterov = true}, {}},
      {"SgdDampened", Sgd{.lr = 0.1, .momentum = 0.9, .dampening = 0.3}, {.clip = 0.5}}};
  return all;
}

Job job_of(const Shape& shape, const Plan& plan, const Recipe& recipe) {
  const auto& [ranks, accumulate, precision] = shape;
  return {plan.accumulate(accumulate).precision(precision), ranks, recipe.optimizer, recipe.options};
}

// Ranks, micro-batches a step, which recipe, plan.
class PlansAndTorch : public testing::TestWithParam<std::tuple<int, int, std::size_t, Plan>> {};

TEST_P(PlansAndTorch, ComputeTheSame) {
  const auto& [ranks, accumulate, which, plan] = GetParam();
  const Job job = job_of({ranks, accumulate, Precision::fp32}, plan, recipes()[which]);
  EXPECT_EQ(difference(train_plain<Lm>(job), train<Lm>(job), 1e-6), "");
}

std::string title_of_plans_and_torch(const testing::TestParamInfo<PlansAndTorch::ParamType>& tested) {
  const auto& [ranks, accumulate, which, plan] = tested.param;
  return in_title(ranks, accumulate, Precision::fp32) + recipes()[which].name + in_title(plan.label());
}

INSTANTIATE_TEST_SUITE_P(All, PlansAndTorch,
                         testing::ValuesIn(covering(std::vector{1, 2, 3, 4, 5}, std::vector{1, 3},
                                                    std::vector<std::size_t>{0, 1, 2, 3, 4, 5},
                                                    std::vector{Plan::ddp(), Plan::zero3()})),
                         title_of_plans_and_torch);

TEST(Plans, InBf16StayNearTorchInFp32) {
  const Recipe& recipe = recipes()[0];
  const Outcome expected = train_plain<Lm>(job_of(Shape(2, 1, Precision::fp32), Plan::ddp(), recipe));
  const Outcome run = train<Lm>(job_of(Shape(2, 1, Precision::bf16), Plan::zero3(), recipe));
  for (std::size_t i = 0; i < expected.losses.size(); ++i) EXPECT_NEAR(expected.losses[i], run.losses[i], 0.05);
}

}  // namespace zero::test::plans_test
