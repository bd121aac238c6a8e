// The planner's account of a micro-batch against what LibTorch allocates in one; where the small ones of its blocks
// lie.
#include <torch/torch.h>

#include "harness.h"
#include "memory/torch/arena_allocator.h"
#include "memory/torch/small_blocks.h"
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

// What is computed again, and the loss in pieces. Of fewer tokens than 16, oneDNN takes more beside products in 16
// bits.
const models::ActivationOptions kOptions[] = {{},
                                              {.recompute = models::Recompute::layers},
                                              {.recompute = models::Recompute::selective},
                                              {.loss_pieces = 2},
                                              {models::Recompute::layers, 2},
                                              {models::Recompute::selective, 2}};

std::string name_of(const models::ActivationOptions& options) {
  return std::string(name(options.recompute)) + std::to_string(options.loss_pieces);
}

class ActivationsOf : public testing::TestWithParam<std::tuple<Case, Precision, models::ActivationOptions>> {};

std::int64_t measured_peak(const planner::MicroBatch& micro, std::int64_t& state) {
  use_arena();
  const OneThread alone;
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
  const auto& [shape, precision, options] = GetParam();
  models::LlamaConfig config = shape.config;
  config.activations = options;
  const planner::MicroBatch micro{config, shape.batch, shape.seq, precision, planner::product_scratch()};
  std::int64_t state = 0;
  const std::int64_t measured = measured_peak(micro, state);
  const std::int64_t predicted = planner::activations(micro).bytes;
  EXPECT_GE(predicted, measured);
  EXPECT_LE(static_cast<double>(predicted + state), 1.03 * static_cast<double>(measured + state));
}

ActivationReport within(const planner::MicroBatch& micro) {
  use_arena();
  const OneThread alone;
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

class BudgetsBeside : public testing::TestWithParam<std::tuple<Precision, models::ActivationOptions>> {};

// The engine replays its own record, with the times that it measured, and finds as much as the planner of its list.
TEST_P(BudgetsBeside, AreMetWhereThePlannerSaysSo) {
  const auto& [precision, options] = GetParam();
  planner::MicroBatch micro{sizes(128, 4, 4, 2, 300), 4, 96, precision, planner::product_scratch()};
  micro.config.activations = options;
  const std::int64_t all = planner::activations(micro).bytes;
  const planner::Pace pace = planner::pace_for({}, precision);
  micro.budget.bytes = planner::least_activation_budget(micro, pace) + all / 50;
  const bool whole = options == models::ActivationOptions{};
  EXPECT_LT(micro.budget.bytes, whole ? all / 2 : all);
  EXPECT_TRUE(planner::recomputation(micro, pace));
  std::int64_t state = 0;
  EXPECT_LE(measured_peak(micro, state), all);
  const ActivationReport report = within(micro);
  EXPECT_LE(report.unlimited_bytes, whole ? all : all + all / 200);
  EXPECT_NEAR(static_cast<double>(report.unlimited_bytes), static_cast<double>(all), .005 * static_cast<double>(all));
  EXPECT_LE(report.peak_bytes, micro.budget.bytes);
  EXPECT_GT(report.planned_bytes, 0);
}

INSTANTIATE_TEST_SUITE_P(All, BudgetsBeside,
                         testing::Combine(testing::Values(Precision::fp32, Precision::bf16),
                                          testing::ValuesIn(kOptions)),
                         [](const auto& each) {
                           return std::string(name(std::get<0>(each.param))) + "_" + name_of(std::get<1>(each.param));
                         });

INSTANTIATE_TEST_SUITE_P(All, ActivationsOf,
                         testing::Combine(testing::ValuesIn(kCases), testing::Values(Precision::fp32, Precision::bf16),
                                          testing::ValuesIn(kOptions)),
                         [](const auto& each) {
                           return std::string(std::get<0>(each.param).name) + "_" +
                                  std::string(name(std::get<1>(each.param))) + "_" + name_of(std::get<2>(each.param));
                         });

// A training whose activations are small; `rows` of the input by the number of the micro-batch.
struct Small : torch::nn::Module {
  Small() {
    for (int i = 0; i < 6; ++i) layers->push_back(torch::nn::Linear(32, 32));
  }
  at::Tensor loss(std::int64_t index) {
    at::Tensor x = numbers(index, {rows(index), 32});
    for (auto& layer : *layers) x = torch::gelu(layer.forward<at::Tensor>(x));
    if (disturbed) torch::ones({index + 1});
    return x.square().mean();
  }

  torch::nn::Sequential layers = register_module("layers", torch::nn::Sequential());
  std::function<std::int64_t(std::int64_t)> rows = [](std::int64_t) { return 16; };
  bool disturbed = false;  // no micro-batch allocates what another does
};

struct Trained {
  std::vector<double> losses;
  std::vector<bool> planned;  // by step
};

Trained trained(const Plan& plan, int ranks, int steps, const std::function<std::int64_t(std::int64_t)>& rows,
                bool disturbed = false) {
  use_arena();
  Trained run;
  on_ranks<Small>({.plan = plan, .ranks = ranks, .options = {.seed = 3}}, {},
                  [&](Small& model, Engine& engine, int rank) {
                    model.rows = rows;
                    model.disturbed = disturbed;
                    for (int step = 0; step < steps; ++step) {
                      engine.backward(model.loss(engine.micro_batch()));
                      const bool planned = small_blocks::planned();
                      const double loss = engine.step().loss;
                      if (rank != 0) continue;
                      run.losses.push_back(loss);
                      run.planned.push_back(planned);
                    }
                  });
  return run;
}

class SmallBlocksUnder : public testing::TestWithParam<std::tuple<Plan, int>> {};

bool all_from(const std::vector<bool>& planned, std::size_t step) {
  return std::all_of(planned.begin() + static_cast<std::ptrdiff_t>(step), planned.end(),
                     [](bool each) { return each; });
}

// To the bit as without a plan, once micro-batches repeat.
TEST_P(SmallBlocksUnder, LieWhereTheyWerePlanned) {
  const auto& [plan, ranks] = GetParam();
  const auto rows = [](std::int64_t) { return 16; };
  const Trained planned = trained(plan, ranks, 10, rows), not_planned = trained(plan, ranks, 10, rows, true);
  EXPECT_TRUE(all_from(planned.planned, 7));
  EXPECT_FALSE(planned.planned[0]);
  EXPECT_EQ(std::count(not_planned.planned.begin(), not_planned.planned.end(), true), 0);
  EXPECT_EQ(planned.losses, not_planned.losses);
}

TEST_P(SmallBlocksUnder, OfShapesThatAlternateDoToo) {
  const auto& [plan, ranks] = GetParam();
  const auto rows = [ranks = ranks](std::int64_t index) { return 8 + index / ranks % 3 * 8; };
  const Trained planned = trained(plan, ranks, 24, rows), not_planned = trained(plan, ranks, 24, rows, true);
  EXPECT_TRUE(all_from(planned.planned, 18));
  EXPECT_EQ(planned.losses, not_planned.losses);
}

// As the first without a plan.
TEST_P(SmallBlocksUnder, OfShapesThatDoNotRepeatAreAsTheyCome) {
  const auto& [plan, ranks] = GetParam();
  const auto rows = [](std::int64_t index) { return 1 + (index * 7919) % 1009; };
  EXPECT_EQ(trained(plan, ranks, 12, rows).losses, trained(plan, ranks, 12, rows, true).losses);
}

INSTANTIATE_TEST_SUITE_P(All, SmallBlocksUnder,
                         testing::Combine(testing::Values(Plan::ddp(), Plan::zero3(), Plan::zero3().bf16(),
                                                          Plan::zero3().activation_budget({.share = .6})),
                                          testing::Values(1, 2)));

// Micro-batches of random lengths: what is held for reuse stays within what one needs.
TEST(SmallBlocks, OfManyMicroBatchesHoldNoMore) {
  use_arena();
  auto model = std::make_shared<Small>();
  Engine engine(*model, World(), Plan::zero3(), AdamW{});
  std::int64_t most = 0;
  for (int step = 0; step < 1000; ++step) {
    model->rows = [&](std::int64_t) { return step % 3 == 0 ? 1 + (step * 7919) % 200 : 200; };
    engine.backward(model->loss(step));
    engine.step();
    if (step == 100) most = host_usage().arena_waiting;
  }
  EXPECT_GT(most, 0);
  EXPECT_LE(host_usage().arena_waiting, most);
}

// M_D of ZeRO-R: pages that wait for the next micro-batch, when it is planned, beside the largest sum of what lives.
TEST(SmallBlocks, ArePlannedAsHighAsWhatLives) {
  use_arena();
  const OneThread alone;
  torch::manual_seed(1);
  models::Llama model(models::llama_preset("micro"));
  trim_arena();
  const std::int64_t before = host_usage().arena_waiting;
  Engine engine(*model, World(), Plan::ddp(), AdamW{});
  const at::Tensor ids = torch::randint(model->config().vocab_size, {2, 32}, torch::kLong);
  for (int step = 0; step < 6; ++step) {
    engine.backward(model->loss(ids, ids));
    engine.step();
  }
  ASSERT_TRUE(small_blocks::planned());
  const auto peak = static_cast<double>(engine.ledger()[Owner::activation].peak);
  const auto held = static_cast<double>(host_usage().arena_waiting - before);
  EXPECT_GT(held, .5 * peak) << "nothing is held";
  EXPECT_LE(held, 1.05 * peak);
}

}  // namespace zero::test::activations_test
