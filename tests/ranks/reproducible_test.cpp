// With Plan::reproducible one global batch gives one result, however it is split: over ranks, over
// accumulation steps, under any plan.
#include <torch/torch.h>

#include "lm.h"

namespace zero::test {
namespace {

constexpr std::pair<int, int> kSplits[] = {{1, 8}, {2, 4}, {4, 2}, {8, 1}};  // ranks, micro-batches of each

class Reproducible : public testing::TestWithParam<Precision> {
 protected:
  static Job job(const Plan& plan, int ranks, int accumulate) {
    return {.plan = plan.precision(GetParam()).reproducible(true).accumulate(accumulate),
            .ranks = ranks,
            .optimizer = AdamW{.lr = 1e-2},
            .options = {.clip = 0.5, .seed = 11, .groups = {no_decay_on_norms_biases_embeddings()}},
            .steps = 3};
  }

  template <class Model>
  static void expect_one_result(const Course<Model>& course) {
    const Outcome expected = train<Model>(job(Plan::ddp(), 1, 8), course);
    for (const Plan& plan : all_plans())
      for (const auto& [ranks, accumulate] : kSplits) {
        const Job split = job(plan, ranks, accumulate);
        EXPECT_EQ(difference(expected, train<Model>(split, course)), "") << describe(split);
      }
  }
};

TEST_P(Reproducible, EveryPlanAndSplitGivesOneLossCurve) {
  expect_one_result<Lm>(lm_with_dropout(0));
}

TEST_P(Reproducible, DropoutIncluded) {
  expect_one_result<Lm>(lm_with_dropout(0.3));
}

// Micro-batches that use different parameters, and one that uses none of the experts.
struct Experts : torch::nn::Module {
  Experts() : head(register_module("head", torch::nn::Linear(6, 5))) {
    for (int i = 0; i < 3; ++i) experts->push_back(torch::nn::Linear(6, 6));
    register_module("experts", experts);
  }
  at::Tensor loss(std::int64_t index) {
    at::Tensor x = numbers(index, {4, 6});
    if (const auto expert = static_cast<std::size_t>(index % 4); expert < 3)
      x = experts[expert]->as<torch::nn::Linear>()->forward(x);
    return head(x).logsumexp(1).mean();
  }

  torch::nn::ModuleList experts;
  torch::nn::Linear head;
};

TEST_P(Reproducible, MissingGradientsIncluded) {
  expect_one_result<Experts>({});
}

TEST_P(Reproducible, AnotherSeedGivesAnotherDropout) {
  Job one = job(Plan::zero3(), 2, 1), other = one;
  other.options.seed = 12;
  EXPECT_NE(difference(train<Lm>(one, lm_with_dropout(0.3)), train<Lm>(other, lm_with_dropout(0.3))), "");
}

TEST_P(Reproducible, TakesExactlyThePlannedMicroBatches) {
  on_ranks<Lm>(job(Plan::zero2(), 2, 2), {}, [](Lm& model, Engine& engine, int) {
    for (int i = 0; i < 2; ++i) engine.backward(model.loss(i));
    EXPECT_THROW(engine.backward(model.loss(2)), StateError);
    EXPECT_TRUE(engine.step().applied);
  });
}

INSTANTIATE_TEST_SUITE_P(All, Reproducible, testing::Values(Precision::fp32, Precision::bf16),
                         [](const auto& info_of_test) { return std::string(name(info_of_test.param)); });

}  // namespace
}  // namespace zero::test
