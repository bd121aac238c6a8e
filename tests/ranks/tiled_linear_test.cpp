// Linear layers in tiles: what they compute, what is gathered of them, and their state as the plain layer's.
#include "zero/tiled_linear.h"

#include <torch/torch.h>

#include <filesystem>
#include <sstream>

#include "covering.h"
#include "lm.h"
#include "optimizers.h"
#include "states.h"
#include "zero/deferred.h"
#include "zero/error.h"

namespace zero::test::tiled_linear_test {

constexpr std::int64_t kInner = 200, kTiles = 3;

// A block with a layer that is wider than all else; that layer in tiles, or plain.
struct WideBlockImpl : torch::nn::Module {
  explicit WideBlockImpl(bool tiled)
      : norm(register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({13})))) {
    const torch::nn::LinearOptions options(13, kInner);
    if (tiled) {
      in_tiles = register_module("up", TiledLinear(options, kTiles));
    } else {
      plain = register_module("up", torch::nn::Linear(options));
    }
    down = register_module("down", torch::nn::Linear(kInner, 13));
  }
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor y = norm(x);
    return x + down(torch::gelu(in_tiles ? in_tiles(y) : plain(y)));
  }

  torch::nn::LayerNorm norm;
  torch::nn::Linear plain{nullptr}, down{nullptr};
  TiledLinear in_tiles{nullptr};
};
TORCH_MODULE(WideBlock);

struct WideLm : torch::nn::Module {
  explicit WideLm(bool tiled)
      : embed(register_module("embed", torch::nn::Embedding(29, 13))),
        blocks(register_module("blocks", torch::nn::Sequential())) {
    for (int i = 0; i < 2; ++i) blocks->push_back(WideBlock(tiled));
  }
  at::Tensor loss(std::int64_t index) {
    const at::Tensor ids = tokens(index, {3, 7}, 29).to(embed->weight.device());
    const at::Tensor logits = at::matmul(blocks->forward(embed(ids.slice(1, 0, 6))), embed->weight.t());
    return torch::nn::functional::cross_entropy(logits.flatten(0, 1), ids.slice(1, 1).flatten());
  }

  torch::nn::Embedding embed;
  torch::nn::Sequential blocks;
};

Course<WideLm> wide(bool tiled) {
  return {.make = [tiled] { return std::make_shared<WideLm>(tiled); }};
}

template <class From, class To>
void hand_over(const From& from, const To& to) {
  std::stringstream file;
  torch::save(from, file);
  torch::load(const_cast<To&>(to), file);
}

// The layer's weight and bias.
std::pair<at::Tensor, at::Tensor> values_of(const TiledLinear& tiled) {
  torch::nn::Linear plain(tiled->options);
  hand_over(tiled, plain);
  return {plain->weight, plain->bias};
}

class Filled : public testing::TestWithParam<std::tuple<std::int64_t, std::int64_t, bool, int>> {};

// What LibTorch computes of each tile's outputs alone.
at::Tensor by_tiles(const TiledLinear& tiled, const at::Tensor& x) {
  std::vector<at::Tensor> weights, biases, outputs;
  for (const auto& item : tiled->named_parameters())
    (item.key().ends_with("weight") ? weights : biases).push_back(item.value());
  for (std::size_t i = 0; i < weights.size(); ++i)
    outputs.push_back(biases.empty() ? at::linear(x, weights[i]) : at::linear(x, weights[i], biases[i]));
  return at::cat(outputs, -1);
}

// Whether they have the plain layer's very bits is the processor's to say, and how many columns its products like.
TEST_P(Filled, ComputesAsThePlainLayer) {
  const auto& [outputs, tiles, bias, dimensions] = GetParam();
  const torch::nn::Linear plain(torch::nn::LinearOptions(48, outputs).bias(bias));
  const TiledLinear tiled = tiled_linear(plain, tiles);
  EXPECT_EQ(tiled->children().size(), static_cast<std::size_t>(tiles));
  at::Tensor x = dimensions == 2 ? numbers(1, {16, 48}) : numbers(1, {2, 8, 48}), again = x.clone();
  x.requires_grad_();
  again.requires_grad_();
  const at::Tensor expected = torch::nn::Linear(plain)->forward(x), computed = TiledLinear(tiled)->forward(again);
  EXPECT_TRUE(at::equal(computed, by_tiles(tiled, x)));
  EXPECT_TRUE(at::allclose(computed, expected, 1e-5, 1e-6));
  const at::Tensor gradient = numbers(2, computed.sizes());
  expected.backward(gradient);
  computed.backward(gradient);
  EXPECT_TRUE(at::allclose(again.grad(), x.grad(), 1e-5, 1e-5));
  std::vector<at::Tensor> weights, biases;
  for (const auto& item : tiled->named_parameters())
    (item.key().ends_with("weight") ? weights : biases).push_back(item.value().grad());
  EXPECT_TRUE(at::equal(at::cat(weights), plain->weight.grad()));
  EXPECT_TRUE(biases.empty() != bias);
  const bool whole_vectors = outputs > 64 * (tiles - 1);
  EXPECT_TRUE(!bias || !whole_vectors || at::equal(at::cat(biases), plain->bias.grad()));
  EXPECT_TRUE(!bias || at::allclose(at::cat(biases), plain->bias.grad()));
}

INSTANTIATE_TEST_SUITE_P(TiledLinear, Filled,
                         testing::ValuesIn(covering(std::vector<std::int64_t>{64, 200, 256},
                                                    std::vector<std::int64_t>{1, 2, 3, 4}, std::vector{true, false},
                                                    std::vector{2, 3})));

TEST(TiledLinear, DrawsTheNumbersOfThePlainLayer) {
  torch::manual_seed(5);
  const torch::nn::Linear plain(13, kInner);
  torch::manual_seed(5);
  const TiledLinear tiled(13, kInner, kTiles);
  EXPECT_TRUE(at::equal(values_of(tiled).first, plain->weight));
  EXPECT_TRUE(at::equal(values_of(tiled).second, plain->bias));
}

TEST(TiledLinear, IsCutAtWholeVectorsWhereThereAreEnough) {
  const auto cut = [](std::int64_t outputs, std::int64_t tiles) { return TiledLinear(2, outputs, tiles)->borders(); };
  EXPECT_EQ(cut(200, 3), (std::vector<std::int64_t>{0, 64, 128, 200}));
  EXPECT_EQ(cut(100, 3), (std::vector<std::int64_t>{0, 32, 64, 100}));
  EXPECT_EQ(cut(5, 3), (std::vector<std::int64_t>{0, 1, 3, 5}));
  EXPECT_THROW(cut(5, 6), ConfigError);
  EXPECT_THROW(cut(5, 0), ConfigError);
}

TEST(TiledLinear, IsSavedAndLoadedAsThePlainLayer) {
  const torch::nn::Linear plain(torch::nn::LinearOptions(13, kInner));
  TiledLinear tiled(13, kInner, kTiles), cut_otherwise(13, kInner, 2);
  hand_over(plain, tiled);
  hand_over(tiled, cut_otherwise);
  EXPECT_TRUE(at::equal(values_of(cut_otherwise).first, plain->weight));
  EXPECT_TRUE(at::equal(values_of(cut_otherwise).second, plain->bias));
  const auto copy = std::dynamic_pointer_cast<TiledLinearImpl>(tiled->clone());
  EXPECT_TRUE(at::equal(values_of(TiledLinear(copy)).first, plain->weight));
  EXPECT_FALSE(copy->parameters().front().is_same(tiled->parameters().front()));
}

TEST(TiledLinear, TakesOverTypeAndWhetherItIsTrained) {
  torch::nn::Linear plain(torch::nn::LinearOptions(13, kInner).bias(false));
  plain->to(at::kBFloat16);
  plain->weight.set_requires_grad(false);
  const TiledLinear tiled = tiled_linear(plain, kTiles);
  for (const at::Tensor& each : tiled->parameters())
    EXPECT_TRUE(each.scalar_type() == at::kBFloat16 && !each.requires_grad() && each.is_leaf());
  EXPECT_THROW(TiledLinear(13, kInner, 2)->set(plain->weight, {}), ConfigError);  // which has a bias
}

// Tile by tile, with the values of a model that is built whole.
TEST(TiledLinear, IsBuiltWithoutMemory) {
  torch::manual_seed(5);
  const WideLm whole(true);
  run_ranks(1, [&](const World& world) {
    torch::manual_seed(5);
    const auto model = deferred([] { return std::make_shared<WideLm>(true); });
    const Engine engine(*model, world, Plan::zero3(), AdamW{});
    for (const auto& item : model->named_parameters())
      EXPECT_TRUE(at::equal(engine.main_parameter(item.value()), whole.named_parameters()[item.key()])) << item.key();
  });
}

TEST(TiledLinear, TakesThePlaceOfLayersThatASequentialCalls) {
  struct Outer : torch::nn::Module {
    torch::nn::Sequential layers = register_module(
        "layers", torch::nn::Sequential(torch::nn::Linear(13, kInner), torch::nn::GELU(), torch::nn::Linear(kInner, 13),
                                        WideBlock(false), torch::nn::Linear(13, 2)));
  } model;
  const at::Tensor x = numbers(1, {4, 13}), expected = model.layers->forward(x);
  const TiledLayers layers = tile_linears(model, 1000);
  EXPECT_EQ(layers.tiled, (std::vector<std::string>{"layers.0", "layers.2"}));
  EXPECT_EQ(layers.left, (std::vector<std::string>{"layers.3.up", "layers.3.down"}));
  for (const auto& item : model.named_parameters()) {
    const bool left = item.key().starts_with("layers.3");
    EXPECT_TRUE(left || item.value().numel() <= 1000) << item.key();
  }
  EXPECT_TRUE(at::allclose(model.layers->forward(x), expected, 1e-5, 1e-6));
  EXPECT_TRUE(tile_linears(model, 1 << 20).tiled.empty());
  EXPECT_THROW(tile_linears(model, 0), ConfigError);
}

TEST(TiledLinear, HasTheWeightsOfThePlainLayerInFiles) {
  std::string folder = testing::TempDir() + "zero-tiled-XXXXXX";
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  WideLm plain(false), tiled(true), back(false);
  initialise(plain, 3);
  save_safetensors(plain, folder + "/plain");
  load_safetensors(tiled, folder + "/plain");
  save_safetensors(tiled, folder + "/tiled");
  load_safetensors(back, folder + "/tiled");
  for (const auto& item : plain.named_parameters())
    EXPECT_TRUE(at::equal(item.value(), back.named_parameters()[item.key()])) << item.key();
  save_safetensors(tiled, folder + "/narrow", {.dtype = Dtype::bf16});
  load_safetensors(tiled, folder + "/narrow");
  EXPECT_TRUE(at::equal(values_of(tiled.blocks[0]->as<WideBlock>()->in_tiles).first,
                        plain.blocks[0]->as<WideBlock>()->plain->weight.to(at::kBFloat16).to(at::kFloat)));
  TiledLinear narrower(13, 100, 2);
  const std::string fault = thrown_by([&] { load_safetensors(*narrower, folder + "/plain"); });
  EXPECT_TRUE(says(fault, {"'weight' is missing, Float [100, 13]", "'bias' is missing, Float [100]"}));
  std::filesystem::remove_all(folder);
}

using Training = std::tuple<int, int, Precision>;
class TiledTraining : public testing::TestWithParam<Training> {};

// Every plan has ddp's bits, and in fp32 what torch::optim computes.
TEST_P(TiledTraining, IsThatOfEveryPlan) {
  const auto& [ranks, accumulate, precision] = GetParam();
  const Job job{.plan = Plan::ddp().precision(precision).accumulate(accumulate), .ranks = ranks};
  const Outcome replicated = train<WideLm>(job, wide(true));
  if (precision == Precision::fp32) {
    EXPECT_EQ(difference(train_plain<WideLm>(job, wide(true)), replicated, 1e-6), "");
  }
  under_every_plan(job,
                   [&](const Job& each) { EXPECT_EQ(difference(replicated, train<WideLm>(each, wide(true))), ""); });
}

INSTANTIATE_TEST_SUITE_P(TiledLinear, TiledTraining,
                         testing::Combine(testing::Values(1, 2, 4), testing::Values(1, 2),
                                          testing::Values(Precision::fp32, Precision::bf16)));

// What is gathered at once is as predicted: without tiles the two blocks, with them no more than two of the largest
// units that are left. From common memory nothing is. A block's flat gradient waits for its norm's while those of its
// tiles come and go.
TEST(TiledBytes, AreThoseOfTheEstimate) {
  const auto measured = [](bool tiled) {
    std::int64_t peak = 0;
    const Job job{.plan = Plan::zero3(), .ranks = 2};
    on_ranks<WideLm>(job, wide(tiled), [&](WideLm& model, Engine& engine, int rank) {
      for (int step = 0; step < 2; ++step) train_step(model, engine);
      engine.reset_peaks();
      engine.reset_traffic();
      train_step(model, engine);
      const Estimate estimate = engine.estimate();
      const Ledger ledger = engine.ledger();
      EXPECT_EQ(ledger[Owner::gathered].peak, estimate.held[Owner::gathered].peak);
      EXPECT_EQ(ledger[Owner::reduction].peak, estimate.held[Owner::reduction].peak);
      EXPECT_EQ(ledger[Owner::parameter].bytes, estimate.state.parameter);
      EXPECT_TRUE(engine.traffic() == estimate.wire);
      if (rank == 0) peak = ledger[Owner::gathered].peak;
      if (!tiled) return;
      std::int64_t tiles = 0;
      for (const UnitLayout& unit : engine.layout().units())
        if (unit.name().starts_with("blocks.0.up.")) tiles += 1;
      EXPECT_EQ(tiles, kTiles);
    });
    return peak;
  };
  const std::int64_t plain = measured(false), tiled = measured(true);
  EXPECT_EQ(tiled > 0, plain > 0);
  EXPECT_LE(tiled, plain * 3 / 4);
}

States state_of(const Job& job, bool tiled, const States& from, int steps) {
  const auto state = std::make_shared<MemoryState>();
  on_ranks<WideLm>(job, wide(tiled), [&](WideLm& model, Engine& engine, int) {
    if (from) engine.load_state(*from);
    for (int step = 0; step < steps; ++step) train_step(model, engine);
    state->add(engine.state());
  });
  EXPECT_EQ(state->faults(), "");
  return state;
}

// Optimizer, precision, ranks of the one that saves and the one that loads, plans likewise.
using Carried = std::tuple<std::size_t, Precision, int, int, Plan, Plan>;
class TiledState : public testing::TestWithParam<Carried> {};

std::vector<Optimizer> element_by_element() {
  std::vector<Optimizer> all = every_optimizer();
  all.push_back(narrow_moments().front());
  return all;
}

TEST_P(TiledState, IsThatOfThePlainLayer) {
  const auto& [optimizer, precision, ranks, others, plan, other_plan] = GetParam();
  Job job{.plan = plan.precision(precision), .ranks = ranks, .optimizer = element_by_element()[optimizer]};
  const States plain = state_of(job, false, {}, 2), own = state_of(job, true, {}, 2);
  job.plan = other_plan.precision(precision);
  job.ranks = others;
  const States tiled = state_of(job, true, plain, 0);
  EXPECT_EQ(difference(*tiled, *plain), "");
  EXPECT_EQ(difference(*state_of(job, false, tiled, 0), *plain), "");
  EXPECT_EQ(difference(*state_of(job, false, own, 0), *own), "");
  EXPECT_EQ(difference(*state_of(job, true, own, 0), *own), "");
}

INSTANTIATE_TEST_SUITE_P(
    TiledLinear, TiledState,
    testing::ValuesIn(covering(std::vector<std::size_t>{0, 1, 8, 10, 11, 13},
                               std::vector{Precision::fp32, Precision::bf16, Precision::bf16_kahan}, std::vector{1, 2},
                               std::vector{1, 3}, std::vector{Plan::ddp(), Plan::zero3()},
                               std::vector{Plan::zero1(), Plan::zero3()})));

// What belongs to a tile alone is carried from tiles to the same tiles, and to nothing else.
TEST(TiledState, KeepsWhatIsATilesOwn) {
  std::vector<Optimizer> own = whole_optimizers();
  own.push_back(narrow_moments()[1]);
  for (const Optimizer& optimizer : own) {
    SCOPED_TRACE(name(optimizer));
    const Job job{.plan = Plan::zero2().bf16(), .ranks = 2, .optimizer = optimizer};
    const Job as_many{.plan = Plan::zero3().bf16(), .ranks = 2, .optimizer = optimizer};
    const Job other{.plan = Plan::zero3().bf16(), .ranks = 4, .optimizer = optimizer};
    const States half = state_of(job, true, {}, 2);
    EXPECT_EQ(difference(*state_of(other, true, half, 0), *half), "");
    EXPECT_EQ(difference(*state_of(as_many, true, half, 1), *state_of(job, true, {}, 3)), "");
  }
  const Job job{.plan = Plan::zero3().bf16(), .ranks = 2, .optimizer = narrow_moments()[1]};
  const States tiled = state_of(job, true, {}, 1), plain = state_of(job, false, {}, 1);
  EXPECT_TRUE(says(thrown_by([&] { state_of(job, false, tiled, 0); }), {"blocks.0.up.weight", "blocks.0.up.0.weight"}));
  EXPECT_TRUE(says(thrown_by([&] { state_of(job, true, plain, 0); }), {"blocks.0.up.0.weight"}));
}

// Through files, and with another optimizer's state left out.
TEST(TiledState, IsSavedAndLoaded) {
  std::string folder = testing::TempDir() + "zero-tiled-XXXXXX";
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  const auto saved = [&](const std::string& name, bool tiled, const Optimizer& optimizer) {
    const auto state = std::make_shared<MemoryState>();
    const Job job{.plan = Plan::zero3().bf16(), .ranks = 2, .optimizer = optimizer};
    on_ranks<WideLm>(job, wide(tiled), [&](WideLm& model, Engine& engine, int) {
      for (int step = 0; step < 2; ++step) train_step(model, engine);
      engine.save(folder + "/" + name);
      state->add(engine.state());
    });
    return state;
  };
  const auto loaded = [&](const std::string& name, bool tiled, const LoadOptions& options) {
    const auto state = std::make_shared<MemoryState>();
    on_ranks<WideLm>({.plan = Plan::zero2().bf16(), .ranks = 4}, wide(tiled), [&](WideLm&, Engine& engine, int) {
      engine.load(folder + "/" + name, options);
      state->add(engine.state());
    });
    return state;
  };
  const States plain = saved("plain", false, AdamW{.lr = 2e-3, .eps = 1e-4});
  const States tiled = saved("tiled", true, AdamW{.lr = 2e-3, .eps = 1e-4});
  EXPECT_EQ(difference(*loaded("plain", true, {}), *plain), "");
  EXPECT_EQ(difference(*loaded("tiled", false, {}), *tiled), "");
  const States factored = saved("adafactor", false, Adafactor{});
  const States begun = loaded("adafactor", true, {.allow_new_optimizer = true});
  const StateKey weight{"blocks.1.up.weight", StateKind::main_weight};
  EXPECT_EQ(begun->bytes(weight), factored->bytes(weight));
  WideLm model(true);
  load_safetensors(model, folder + "/plain/step-000002");
  const at::Tensor values = values_of(model.blocks[1]->as<WideBlock>()->in_tiles).first.contiguous();
  const auto* const bytes = static_cast<const char*>(values.const_data_ptr());
  EXPECT_EQ(plain->bytes(weight), std::vector<char>(bytes, bytes + values.nbytes()));
  std::filesystem::remove_all(folder);
}

}  // namespace zero::test::tiled_linear_test
