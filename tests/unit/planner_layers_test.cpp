// Layers that are alike are computed once, and nothing changes by it.
#include <gtest/gtest.h>

#include <algorithm>
#include <tuple>

#include "expanded.h"
#include "optimizers.h"
#include "planner/price.h"
#include "planner/seconds.h"
#include "unit/planner_requests.h"

namespace planner::planner_layers_test {

using zero::Plan;

models::LlamaConfig model(std::int64_t layers, bool tied = false) {
  models::LlamaConfig config = models::llama_preset("micro");
  config.num_hidden_layers = layers;
  config.tie_word_embeddings = tied;
  config.num_key_value_heads = 2;
  return config;
}

std::vector<zero::Optimizer> optimizers() {
  std::vector<zero::Optimizer> all = zero::test::every_optimizer();
  for (const auto& more : {zero::test::narrow_moments(), zero::test::whole_optimizers()})
    all.insert(all.end(), more.begin(), more.end());
  return all;
}

void expect_same(const zero::Estimate& found, const zero::Estimate& slow) {
  EXPECT_EQ(found.state, slow.state);
  EXPECT_EQ(found.held, slow.held);
  EXPECT_EQ(found.slices, slow.slices);
  EXPECT_EQ(found.update_traffic, slow.update_traffic);
  EXPECT_EQ(found.update_staying, slow.update_staying);
  EXPECT_EQ(found.moved, slow.moved);
  EXPECT_EQ(found.building, slow.building);
  EXPECT_EQ(found.wire, slow.wire);
  EXPECT_EQ(found.gathers, slow.gathers);
}

// Every plan, whatever the optimizer; on more ranks than a layer has matrices, and on fewer.
TEST(EqualLayers, CostWhatTheyCostOneByOne) {
  for (const zero::Optimizer& optimizer : optimizers())
    for (const auto& [layers, ranks] : {std::pair{1, 4}, {2, 3}, {3, 8}, {7, 5}, {12, 64}})
      for (const std::string_view preset : Plan::stages()) {
        const Shape shape = shape_of(model(layers, layers % 2 == 0));
        const Plan plan = Plan::named(preset).bf16().accumulate(1 + layers % 3);
        SCOPED_TRACE(describe(optimizer) + ", " + plan.label() + ", " + std::to_string(layers));
        expect_same(estimate(shape, plan, optimizer, ranks), estimate(expanded(shape), plan, optimizer, ranks));
        const Plan divided = plan.offload(zero::State::optimizer, zero::Tier::disk, 0.5);
        expect_same(estimate(shape, divided, optimizer, ranks), estimate(expanded(shape), divided, optimizer, ranks));
      }
}

TEST(EqualLayers, ArePagedAsTheyAreOneByOne) {
  for (const bool tied : {false, true})
    for (const std::int64_t layers : {1, 2, 5, 9})
      for (const int accumulate : {1, 2, 3, 4, 9})
        for (const std::int64_t budget : {0, 300'000, 500'000, 1'700'000, 100'000'000})
          for (const zero::Memory memory : {zero::Memory::separate, zero::Memory::common}) {
            const Shape shape = shape_of(model(layers, tied));
            const Plan plan = Plan::zero3().accumulate(accumulate).resident_budget(budget);
            SCOPED_TRACE(std::to_string(layers) + " layers, " + std::to_string(accumulate) + " micro-batches, " +
                         std::to_string(budget));
            expect_same(estimate(shape, plan, zero::AdamW{}, 4, memory),
                        estimate(expanded(shape), plan, zero::AdamW{}, 4, memory));
          }
}

TEST(EqualLayers, ArePricedAsTheyAreOneByOne) {
  for (const Shape& shape : {shape_of(model(6)), shape_of(std::int64_t{1'000'003}), shape_of(std::int64_t{1} << 30)})
    for (const int accumulate : {1, 4}) {
      Request request = request_of(shape, 8, {}, accumulate);
      request.hosts = 2;
      Request slow = request;
      slow.shape = expanded(shape);
      const std::vector<Cost> found = price(request), expected = price(slow);
      for (std::size_t i = 0; i < found.size(); ++i) {
        EXPECT_EQ(found[i].peak, expected[i].peak);
        EXPECT_EQ(found[i].moment, expected[i].moment);
        EXPECT_EQ(found[i].padding, expected[i].padding);
        EXPECT_EQ(found[i].wire(), expected[i].wire());
        EXPECT_EQ(found[i].seconds, expected[i].seconds);
      }
    }
}

// What the planner makes of a micro-batch, from every event of it.
struct EveryLayer : StepListener {
  void at(std::string_view now_comes) override {
    if (now_comes == "backward") in_backward = now;
    moment = now_comes;
  }
  void completes_layer() override {
    if (layers++ == 0) in_layers = now;
  }
  void completes_embedding() override {
    embedding = true;
    in_embedding = now;
  }
  void hold(const Block& made) override {
    now += given(made.bytes);
    if (moment == "backward") in_backward = std::max(in_backward, now);
    if (layers > 0) in_layers = std::max(in_layers, now);
    if (embedding) in_embedding = std::max(in_embedding, now);
    if (now > most) std::tie(most, where) = std::tuple(now, moment);
  }
  void scratch(std::int64_t bytes) override {
    hold({.bytes = bytes});
    drop({.bytes = bytes});
  }
  void drop(const Block& block) override { now -= given(block.bytes); }
  void product(std::int64_t m, std::int64_t n, std::int64_t k) override {
    flops += 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
    ++operators;
  }
  void attention(double count, bool) override {
    attended += count;
    ++operators;
  }
  void sweep(std::int64_t, std::int64_t bytes) override {
    swept += static_cast<double>(bytes);
    ++operators;
  }
  // As activations.cpp counts them.
  static std::int64_t given(std::int64_t bytes) { return bytes < 128 << 10 ? bytes + 48 : bytes; }

  std::int64_t now = 512, most = 0, in_backward = 0, in_layers = 0, in_embedding = 0, layers = 0;
  bool embedding = false;
  std::string_view moment, where;
  double flops = 0, attended = 0, swept = 0, operators = 0;
};

// Some of them keep more in each layer than its backward brings, others less.
TEST(EqualLayers, AreWalkedThroughAsTheyAreOneByOne) {
  for (const std::int64_t layers : {1, 2, 3, 4, 5, 24})
    for (const auto& [batch, seq] : {std::pair{1, 3}, {1, 48}, {4, 128}, {3, 1000}})
      for (const zero::Precision precision : {zero::Precision::fp32, zero::Precision::bf16})
        for (const std::int64_t inner : {8, 344, 9000}) {
          models::LlamaConfig config = model(layers);
          config.intermediate_size = inner;
          const MicroBatch work{config, batch, seq, precision};
          EveryLayer slow;
          walk(work, slow);
          const Activations found = activations(work);
          EXPECT_EQ(found.bytes, slow.most);
          EXPECT_EQ(found.moment, slow.where);
          EXPECT_EQ(found.in_backward, slow.in_backward);
          EXPECT_EQ(found.in_layers, slow.in_layers);
          EXPECT_EQ(found.in_embedding, slow.in_embedding);
          EXPECT_EQ(found.layers, slow.layers);
          const Labour labour = labour_of(work);
          EXPECT_EQ(labour.matrix_flops, slow.flops);
          EXPECT_EQ(labour.attention_flops, slow.attended);
          EXPECT_EQ(labour.sweep_bytes, slow.swept);
          EXPECT_EQ(labour.operators, slow.operators);
        }
}

// Goes through one of those that are alike.
struct Events : StepListener {
  void repeat(std::int64_t times, const std::function<void()>& once) override {
    repeated += times;
    if (times > 0) once();
  }
  void hold(const Block&) override { ++holds; }
  std::int64_t holds = 0, repeated = 0;
};

TEST(EqualLayers, AreToldOfOnce) {
  const auto events = [](std::int64_t layers) {
    Events counted;
    walk({model(layers), 1, 16, zero::Precision::bf16}, counted);
    EXPECT_EQ(counted.repeated, 2 * layers - 1);
    return counted.holds;
  };
  EXPECT_EQ(events(10'000), events(2));
}

TEST(EqualLayers, AreLaidOutOnce) {
  const Shape shape = shape_of(model(10'000));
  EXPECT_EQ(shape.parameters, models::parameter_count(model(10'000)));
  EXPECT_EQ(shape.infos.size(), shape_of(model(1)).infos.size());
  const Arrangement arrangement(shape, Plan::zero3().bf16(), zero::AdamW{}, 8);
  EXPECT_EQ(arrangement.layout.units().size(), 4);
  EXPECT_EQ(arrangement.repeats, (zero::Repeats{1, 10'000, 1, 1}));
  EXPECT_LE(shape_of(std::int64_t{900'000'000'000'000}).units.size(), 4);
}

}  // namespace planner::planner_layers_test
