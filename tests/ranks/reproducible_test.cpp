// With Plan::reproducible one global batch gives one result, however it is split: over ranks, over
// accumulation steps, under any plan.
#include <torch/torch.h>

#include "covering.h"
#include "lm.h"

namespace zero::test::reproducible_test {

Job job_of(const Plan& plan, int ranks, int accumulate) {
  return {.plan = plan.reproducible(true).accumulate(accumulate),
          .ranks = ranks,
          .optimizer = AdamW{.lr = 1e-2},
          .options = {.clip = 0.5, .seed = 11, .groups = {no_decay_on_norms_biases_embeddings()}},
          .steps = 3};
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

// Ranks, in groups and on hosts of so many (0: of all), and micro-batches that each has of a step.
struct Split {
  int ranks, micro_batches, group = 0, host = 0;
};

void PrintTo(const Split& split, std::ostream* out) {
  *out << split.ranks << "x" << split.micro_batches << "/" << split.group << "/" << split.host;
}

// Precision, plan, and a split of micro-batches.
class Splits : public testing::TestWithParam<std::tuple<Precision, Plan, Split>> {
 protected:
  template <class Model>
  static void expect_one_result(const Course<Model>& course) {
    const auto& [precision, plan, split] = GetParam();
    const int all = split.ranks * split.micro_batches;
    const Outcome expected = train<Model>(job_of(Plan::ddp().precision(precision), 1, all), course);
    Job job = job_of(plan.precision(precision), split.ranks, split.micro_batches);
    job.shard = split.group;
    job.ranks_per_host = split.host;
    EXPECT_EQ(difference(expected, train<Model>(job, course)), "");
  }
};

TEST_P(Splits, DropoutIncluded) {
  expect_one_result<Lm>(lm_with_dropout(0.3));
}

TEST_P(Splits, MissingGradientsIncluded) {
  expect_one_result<Experts>({});
}

std::string title_of_splits(const testing::TestParamInfo<Splits::ParamType>& tested) {
  const auto& [precision, plan, split] = tested.param;
  std::string title = in_title(split.ranks, split.micro_batches, precision) + in_title(plan.label());
  if (split.group > 0) title += "InGroupsOf" + std::to_string(split.group);
  return split.host > 0 ? title + "OnHostsOf" + std::to_string(split.host) : title;
}

// Of eight micro-batches, of twelve, and of others that are no powers of two.
const std::vector<Split> kSplits{{1, 8},    {2, 4},       {8, 1},       {3, 4}, {4, 3}, {12, 1},
                                 {6, 2, 3}, {6, 2, 2, 3}, {6, 2, 0, 3}, {3, 3}, {5, 3}, {6, 3, 3, 2}};

INSTANTIATE_TEST_SUITE_P(All, Splits,
                         testing::ValuesIn(covering(std::vector{Precision::fp32, Precision::bf16}, plans_of_meshes(),
                                                    kSplits)),
                         title_of_splits);

class Reproducible : public testing::TestWithParam<Precision> {};

TEST_P(Reproducible, AnotherSeedGivesAnotherDropout) {
  Job one = job_of(Plan::zero3().precision(GetParam()), 2, 1), other = one;
  other.options.seed = 12;
  EXPECT_NE(difference(train<Lm>(one, lm_with_dropout(0.3)), train<Lm>(other, lm_with_dropout(0.3))), "");
}

TEST_P(Reproducible, TakesExactlyThePlannedMicroBatches) {
  on_ranks<Lm>(job_of(Plan::zero2().precision(GetParam()), 2, 2), {}, [](Lm& model, Engine& engine, int) {
    for (int i = 0; i < 2; ++i) engine.backward(model.loss(i));
    EXPECT_THROW(engine.backward(model.loss(2)), StateError);
    EXPECT_TRUE(engine.step().applied);
  });
}

INSTANTIATE_TEST_SUITE_P(All, Reproducible, testing::Values(Precision::fp32, Precision::bf16),
                         [](const auto& info_of_test) { return std::string(name(info_of_test.param)); });

}  // namespace zero::test::reproducible_test
