// Embeddings with a largest norm of rows, which LibTorch writes while a forward reads.
#include <torch/torch.h>

#include "programs.h"
#include "zero/error.h"

namespace zero::test::max_norm_test {

constexpr std::int64_t kRows = 11;

// `together`: all ranks look up the same rows in a step.
struct Tables : torch::nn::Module {
  explicit Tables(bool same_rows = false, int ranks = 1) : together(same_rows), count(ranks) {}
  at::Tensor loss(std::int64_t index) {
    const at::Tensor ids = tokens(together ? index / count : index, {4, 5}, kRows);
    const at::Tensor x = table(ids).sum(1) + bag(ids.fmod(7));
    return out(x + numbers(index, {4, 6}).to(x.scalar_type())).to(at::kFloat).square().mean();
  }
  bool together;
  int count;
  torch::nn::Embedding table =
      register_module("table", torch::nn::Embedding(torch::nn::EmbeddingOptions(kRows, 6).max_norm(0.35)));
  torch::nn::EmbeddingBag bag = register_module(
      "bag", torch::nn::EmbeddingBag(torch::nn::EmbeddingBagOptions(7, 6).max_norm(0.2).norm_type(1.0)));
  torch::nn::Linear out = register_module("out", torch::nn::Linear(6, 3));
};

const Job kJob{.optimizer = Sgd{.lr = 0.1, .momentum = 0.9}, .steps = 5};

std::vector<ProgramRow> rows() {
  const MakeProgram of_the_same_rows = [](Run& run) {
    const Course<Tables> course{.make = [lanes = run.lanes()] { return std::make_shared<Tables>(true, lanes); }};
    return usual<Tables>(kJob.optimizer, course)(run);
  };
  return {{"OfTablesAndBags", of_the_same_rows, {.steps = kJob.steps, .tolerance = 1e-6}}};
}

// Ranks that look up different rows: what any of them looked up is renormalised for all.
TEST(MaxNorm, OfRowsThatOneRankLooksUpIsTheSameUnderEveryPlan) {
  for (const Precision precision : {Precision::fp32, Precision::bf16}) {
    Job job = kJob;
    job.ranks = 3;
    job.plan = Plan::ddp().precision(precision);
    const Outcome expected = train<Tables>(job);
    under_every_plan(job, [&](const Job& each) { EXPECT_EQ(difference(expected, train<Tables>(each)), ""); });
  }
}

TEST(MaxNorm, HoldsInLookupsAndInTheTableWhenItIsReadOrUpdated) {
  for (const Plan& plan : all_plans())
    on_ranks<Tables>({.plan = plan, .optimizer = Sgd{.lr = 0}}, {}, [](Tables& model, Engine& engine, int) {
      const at::Tensor all = at::arange(kRows);
      {
        const at::NoGradGuard no_grad;
        const auto scope = gather(model.parameters());
        model.table->weight.fill_(1);
      }
      const auto largest = [](const at::Tensor& rows) { return rows.detach().norm(2, 1).max().item<double>(); };
      EXPECT_LT(largest(model.table(at::arange(4))), 0.36);
      {
        const auto scope = gather({model.table->weight});
        EXPECT_LT(largest(model.table->weight.slice(0, 0, 4)), 0.36);
        EXPECT_GT(largest(model.table->weight.slice(0, 4, 5)), 2);
      }
      engine.backward(model.table(all).sum());
      engine.step();
      EXPECT_LT(largest(engine.main_parameter(model.table->weight)), 0.36);
    });
}

TEST(MaxNorm, OfAFunctionSaysWhereToPutIt) {
  struct ByFunction : torch::nn::Module {
    at::Tensor weight = register_parameter("weight", at::ones({5, 3}));
  };
  on_ranks<ByFunction>({}, {}, [](ByFunction& model, Engine&, int) {
    const auto look_up = [&] {
      torch::nn::functional::embedding(at::arange(3), model.weight,
                                       torch::nn::functional::EmbeddingFuncOptions().max_norm(1));
    };
    EXPECT_TRUE(says(thrown_by(look_up), {"'weight'", "torch::nn::Embedding"}));
  });
}

}  // namespace zero::test::max_norm_test
