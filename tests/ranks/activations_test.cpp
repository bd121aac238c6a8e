// The planner's account of a micro-batch against what LibTorch allocates in one.
#include <torch/torch.h>

#include "harness.h"
#include "memory/torch/arena_allocator.h"
#include "models/llama.h"
#include "planner/price.h"
#include "planner/processor.h"
#include "planner/recomputation.h"

namespace zero::test::activations_test {

models::LlamaConfig sizes(std::int64_t hidden, std::int64_t layers, std::int64_t heads, std::int64_t key_value_heads,
                          std::int64_t vocab) {
  models::LlamaConfig config = models::llama_preset("micro");
  config.hidden_size = hidden;
  config.intermediate_size = 11 * hidden / 4;
  config.num_hidden_layers = layers;
  config.num_attention_heads = heads;
  config.num_key_value_heads = key_value_heads;
  config.vocab_size = vocab;
  return config;
}

models::LlamaConfig tied(models::LlamaConfig config) {
  config.tie_word_embeddings = true;
  return config;
}

struct Case {
  const char* name;
  models::LlamaConfig config;
  std::int64_t batch, seq;
};

const Case kCases[] = {{"Deep", sizes(128, 8, 4, 4, 64), 2, 96},         {"Wide", sizes(512, 2, 8, 8, 256), 1, 64},
                       {"Vocabulary", sizes(96, 2, 3, 3, 5000), 2, 50},  {"Grouped", sizes(256, 3, 8, 2, 300), 2, 77},
                       {"Tied", tied(sizes(128, 2, 2, 1, 3000)), 1, 40}, {"Long", sizes(128, 2, 4, 4, 256), 1, 1024}};

class ActivationsOf : public testing::TestWithParam<std::tuple<Case, Precision>> {};

std::int64_t measured_peak(const planner::MicroBatch& micro, std::int64_t& state) {
  use_arena();
  at::set_num_threads(1);
  torch::manual_seed(1);
  models::Llama model(micro.config);
  Engine engine(*model, World(), Plan::zero3().precision(micro.precision), AdamW{});
  const auto ids = [&] { return torch::randint(micro.config.vocab_size, {micro.batch, micro.seq}, torch::kLong); };
  for (int step = 0; step < 2; ++step) {
    engine.backward(model->loss(ids(), ids()));
    engine.step();
  }
  state = engine.ledger().held();
  return engine.ledger()[Owner::activation].peak;
}

// Never less than what is measured, and at most 3 % more of all that a rank holds.
TEST_P(ActivationsOf, AreWhatIsAllocated) {
  const auto& [shape, precision] = GetParam();
  const planner::MicroBatch micro{shape.config, shape.batch, shape.seq, precision, planner::keeps_wide_results()};
  std::int64_t state = 0;
  const std::int64_t measured = measured_peak(micro, state);
  const std::int64_t predicted = planner::activations(micro).bytes;
  EXPECT_GE(predicted, measured);
  EXPECT_LE(static_cast<double>(predicted + state), 1.03 * static_cast<double>(measured + state));
}

ActivationReport within(const planner::MicroBatch& micro) {
  use_arena();
  at::set_num_threads(1);
  torch::manual_seed(1);
  models::Llama model(micro.config);
  Engine engine(*model, World(), Plan::ddp().precision(micro.precision).activation_budget(micro.budget), AdamW{});
  for (int step = 0; step < 5; ++step) {
    const auto ids = [&] { return torch::randint(micro.config.vocab_size, {micro.batch, micro.seq}, torch::kLong); };
    engine.backward(model->loss(ids(), ids()));
    engine.step();
  }
  return engine.activations();
}

// The engine replays its own record, with the times that it measured, and finds as much as the planner of its list.
TEST(ActivationBudgets, AreMetWhereThePlannerSaysSo) {
  for (const Precision precision : {Precision::fp32, Precision::bf16}) {
    planner::MicroBatch micro{sizes(128, 4, 4, 2, 300), 4, 96, precision, planner::keeps_wide_results()};
    const std::int64_t all = planner::activations(micro).bytes;
    const planner::Pace pace = planner::pace_for({}, precision);
    micro.budget.bytes = planner::least_activation_budget(micro, pace) + all / 50;
    EXPECT_LT(micro.budget.bytes, all / 2);
    EXPECT_TRUE(planner::recomputation(micro, pace));
    const ActivationReport report = within(micro);
    EXPECT_LE(report.unlimited_bytes, all);
    EXPECT_NEAR(static_cast<double>(report.unlimited_bytes), static_cast<double>(all), .005 * static_cast<double>(all));
    EXPECT_LE(report.peak_bytes, micro.budget.bytes);
    EXPECT_GT(report.planned_bytes, 0);
  }
}

INSTANTIATE_TEST_SUITE_P(All, ActivationsOf,
                         testing::Combine(testing::ValuesIn(kCases), testing::Values(Precision::fp32, Precision::bf16)),
                         [](const auto& each) {
                           return std::string(std::get<0>(each.param).name) + "_" +
                                  std::string(name(std::get<1>(each.param)));
                         });

}  // namespace zero::test::activations_test
