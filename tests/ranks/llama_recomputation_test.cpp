// The Llama whose layers, or SwiGLU alone, are computed again in backward: the bits of keeping them, in less
// memory.
#include "covering.h"
#include "harness.h"
#include "memory/torch/arena_allocator.h"
#include "models/llama.h"

namespace zero::test::llama_recomputation_test {

using models::Recompute;

models::LlamaConfig config_of(const models::ActivationOptions& options) {
  models::LlamaConfig config = models::llama_preset("micro");
  config.hidden_size = 32;
  config.intermediate_size = 88;
  config.num_hidden_layers = 3;
  config.num_key_value_heads = 2;
  config.vocab_size = 64;
  config.activations = options;
  return config;
}

struct Trained : torch::nn::Module {
  explicit Trained(const models::ActivationOptions& options)
      : llama(register_module("llama", models::Llama(config_of(options)))) {}
  at::Tensor loss(std::int64_t index) {
    const at::Tensor ids = tokens(index, {2, 17}, 64).to(llama->parameters().front().device());
    return llama->loss(ids.slice(1, 0, 16), ids.slice(1, 1));
  }
  models::Llama llama;
};

Outcome trained(const Plan& plan, int ranks, const models::ActivationOptions& options) {
  Job job{.plan = plan, .ranks = ranks};
  if (plan.precision() == Precision::fp16) job.options.loss_scale = LossScale{.initial = 64};
  return train<Trained>(job, {.make = [options] { return std::make_shared<Trained>(options); }});
}

using Case = std::tuple<Plan, Precision, int, Recompute, std::int64_t>;
class LlamaRecomputation : public testing::TestWithParam<Case> {};

TEST_P(LlamaRecomputation, HasTheBitsOfKeepingActivations) {
  const auto& [plan, precision, ranks, recompute, pieces] = GetParam();
  const Plan trained_by = plan.precision(precision).accumulate(2);
  EXPECT_EQ(difference(trained(trained_by, ranks, {Recompute::none, pieces}),
                       trained(trained_by, ranks, {recompute, pieces})),
            "");
}

std::string name_of(const testing::TestParamInfo<Case>& tested) {
  const auto& [plan, precision, ranks, recompute, pieces] = tested.param;
  return in_title(ranks, 2, precision) + in_title(plan.label()) + std::string(name(recompute)) + std::to_string(pieces);
}

INSTANTIATE_TEST_SUITE_P(
    All, LlamaRecomputation,
    testing::ValuesIn(covering(all_plans(),
                               std::vector{Precision::fp32, Precision::bf16, Precision::fp16, Precision::fp8},
                               std::vector{1, 2}, std::vector{Recompute::layers, Recompute::selective},
                               std::vector<std::int64_t>{1, 3})),
    name_of);

std::int64_t peak_of(Recompute recompute, Precision precision) {
  use_arena();
  models::LlamaConfig config = config_of({.recompute = recompute});
  config.num_hidden_layers = 8;
  models::Llama model(config);
  Engine engine(*model, World(), Plan::zero3().precision(precision), AdamW{});
  const at::Tensor ids = tokens(1, {8, 129}, 64);
  engine.backward(model->loss(ids.slice(1, 0, 128), ids.slice(1, 1)));
  engine.step();
  return engine.ledger()[Owner::activation].peak;
}

TEST(LlamaRecomputations, TakeLessMemory) {
  for (const Precision precision : {Precision::fp32, Precision::bf16}) {
    const auto all = static_cast<double>(peak_of(Recompute::none, precision));
    EXPECT_LT(static_cast<double>(peak_of(Recompute::selective, precision)), .92 * all) << name(precision);
    EXPECT_LT(static_cast<double>(peak_of(Recompute::layers, precision)), .4 * all) << name(precision);
  }
}

TEST(LlamaRecomputations, AreNamed) {
  for (const std::string_view each : models::recomputes()) EXPECT_EQ(name(models::recompute_named(each)), each);
  EXPECT_TRUE(says(thrown_by([] { models::recompute_named("all"); }), {"'all'", "none, layers, selective"}));
}

}  // namespace zero::test::llama_recomputation_test
