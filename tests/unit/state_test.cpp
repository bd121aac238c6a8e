// State by name: the orders of elements, and what fits an engine.
#include "partition/state_pieces.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <tuple>

#include "partition/state_tensors.h"
#include "zero/error.h"
#include "zero/loss_scale.h"

namespace zero::state_test {

using Numbers = std::vector<std::int64_t>;

std::int64_t product(const Numbers& numbers) {
  return std::accumulate(numbers.begin(), numbers.end(), std::int64_t{1}, std::multiplies<>());
}

// By element in row-major order, its place in a memory whose dimensions are `order`, the slowest first.
Numbers places_of(const Numbers& shape, const Numbers& order, Numbers& strides) {
  strides.assign(shape.size(), 0);
  std::int64_t stride = 1;
  for (auto d = order.rbegin(); d != order.rend(); ++d) {
    strides[static_cast<std::size_t>(*d)] = stride;
    stride *= shape[static_cast<std::size_t>(*d)];
  }
  Numbers places(static_cast<std::size_t>(product(shape)));
  for (std::size_t i = 0; i < places.size(); ++i) {
    auto rest = static_cast<std::int64_t>(i);
    for (std::size_t d = shape.size(); d-- > 0; rest /= shape[d]) places[i] += rest % shape[d] * strides[d];
  }
  return places;
}

using Found = std::tuple<std::int64_t, std::int64_t, std::int64_t>;

std::vector<Found> runs_of(const ElementOrder& order, std::int64_t begin, std::int64_t end) {
  std::vector<Found> runs;
  order.each_run(begin, end, [&](auto first, auto last, auto place) { runs.emplace_back(first, last, place); });
  return runs;
}

// Element by element.
std::vector<Found> expected_runs(const Numbers& places, std::int64_t begin, std::int64_t end) {
  std::vector<Found> runs;
  for (std::int64_t i = 0; i < static_cast<std::int64_t>(places.size()); ++i) {
    const std::int64_t place = places[static_cast<std::size_t>(i)];
    if (place < begin || place >= end) continue;
    if (!runs.empty()) {
      auto& [first, last, at] = runs.back();
      if (last == i && place == at + last - first) {
        ++last;
        continue;
      }
    }
    runs.emplace_back(i, i + 1, place);
  }
  return runs;
}

const std::vector<Numbers> kShapes{{}, {7}, {3, 5}, {4, 1, 3}, {2, 3, 4, 5}, {1, 1, 6, 1}, {2, 0, 3}};

TEST(ElementOrder, FindsTheRunsOfEveryStretchInEveryOrder) {
  for (const Numbers& shape : kShapes) {
    Numbers order(shape.size());
    std::iota(order.begin(), order.end(), 0);
    do {
      Numbers strides;
      const Numbers places = places_of(shape, order, strides);
      const ElementOrder tested(shape, strides);
      const std::int64_t numel = product(shape);
      for (std::int64_t begin = 0; begin <= numel; begin += 1 + numel / 13)
        for (std::int64_t end = begin; end <= numel; end += 1 + numel / 11)
          ASSERT_EQ(runs_of(tested, begin, end), expected_runs(places, begin, end));
    } while (std::ranges::next_permutation(order).found);
  }
}

TEST(ElementOrder, IsOneRunWhereMemoryIsRowMajor) {
  EXPECT_TRUE(ElementOrder({3, 4}).row_major());
  EXPECT_TRUE(ElementOrder({3, 1}, {1, 7}).row_major());
  EXPECT_FALSE(ElementOrder({3, 4}, {1, 3}).row_major());
  EXPECT_EQ(runs_of(ElementOrder({3, 4}), 2, 9), (std::vector<Found>{{2, 9, 2}}));
  EXPECT_EQ(ElementOrder({2, 3, 4, 5}, {60, 1, 15, 3}).dimensions(), (Numbers{0, 2, 3, 1}));
}

TEST(StretchWriter, BringsEachElementToItsPlace) {
  for (const Numbers& order : {Numbers{0, 1, 2}, Numbers{0, 2, 1}, Numbers{2, 0, 1}}) {
    const Numbers shape{40, 50, 60};
    Numbers strides;
    const Numbers places = places_of(shape, order, strides);
    const std::int64_t begin = 1234, end = 98765;
    std::vector<std::int32_t> memory(static_cast<std::size_t>(end - begin), -1);
    std::int64_t longest = 0;
    StretchWriter().write({ElementOrder(shape, strides), begin, end, Dtype::i32, memory.data()},
                          [&](std::int64_t first, std::int64_t last, void* values) {
                            ASSERT_LE(last, 120000);
                            longest = std::max(longest, last - first);
                            std::iota(static_cast<std::int32_t*>(values),
                                      static_cast<std::int32_t*>(values) + (last - first),
                                      static_cast<std::int32_t>(first));
                          });
    for (std::size_t i = 0; i < places.size(); ++i)
      if (places[i] >= begin && places[i] < end) {
        ASSERT_EQ(memory[static_cast<std::size_t>(places[i] - begin)], static_cast<std::int32_t>(i));
      }
    EXPECT_GT(longest, 1000) << "one element at a time";
  }
}

// Two matrices, the second behind 12 elements and a gap; and a frozen one.
struct Described {
  explicit Described(const Optimizer& optimizer, const Plan& plan = Plan::zero3().bf16())
      : layout(std::vector<ParameterSpec>{{"a", 12, Dtype::bf16, true, "unit"},
                                          {"b", 600, Dtype::bf16, true, "unit"},
                                          {"fixed", 6, Dtype::bf16, false, "unit"}},
               2, 256) {
    for (int i = 0; i < 3; ++i) {
      const auto [u, s] = layout.at(i);
      const UnitLayout& unit = layout.unit(u);
      const Slot& slot = unit.slot(s);
      const ParameterRule rule{optimizer, 1, i == 0 ? Numbers{3, 4} : i == 1 ? Numbers{20, 30} : Numbers{6}};
      const ElementOrder order(rule.shape);
      parameters.push_back({.name = slot.name,
                            .optimizer = std::string(name(optimizer)),
                            .trainable = unit.trainable(),
                            .plain = state_tensors(unit, slot, rule, order, plan, false),
                            .kept = state_tensors(unit, slot, rule, order, plan, true)});
      for (const StateTensor& each : unit.trainable() ? parameters.back().kept : parameters.back().plain)
        tensors.push_back(each);
      scalars.updates[slot.name] = unit.trainable() ? 3 : 0;
      if (unit.trainable()) scalars.optimizers[slot.name] = name(optimizer);
    }
  }
  StateFit fit() const { return fit_state(parameters, buffers, tensors, scalars); }
  StateTensor& at(const StateKey& key) { return *std::ranges::find(tensors, key, &StateTensor::key); }

  Layout layout;
  std::vector<ExpectedParameter> parameters;
  std::vector<StateTensor> buffers{{{"mean", StateKind::buffer}, Dtype::f32, {4}}};
  std::vector<StateTensor> tensors = buffers;
  StateScalars scalars;
};

std::vector<std::string> words_of(const std::vector<StateTensor>& tensors) {
  std::vector<std::string> words;
  for (const StateTensor& each : tensors) words.push_back(describe(each.key) + ": " + describe(each));
  return words;
}

TEST(StateTensors, AreNamedByParameterAndKind) {
  EXPECT_EQ(words_of(Described(AdamW{}).parameters[0].kept),
            (std::vector<std::string>{"a main weight: fp32 [3, 4]", "a moment exp_avg: fp32 [3, 4]",
                                      "a moment exp_avg_sq: fp32 [3, 4]"}));
  EXPECT_EQ(words_of(Described(Adafactor{}, Plan::ddp().precision(Precision::bf16_kahan)).parameters[1].kept),
            (std::vector<std::string>{"b parameter: bf16 [20, 30]", "b remainder: bf16 [20, 30]", "b row: fp32 [20, 1]",
                                      "b column: fp32 [1, 30]"}));
  EXPECT_EQ(words_of(Described(AdamW{.format = MomentFormat::block8}, Plan::ddp().precision(Precision::bf16_pure))
                         .parameters[1]
                         .kept),
            (std::vector<std::string>{
                "b parameter: bf16 [20, 30]", "b moment exp_avg: uint8 [20, 30]",
                "b scale exp_avg: fp32 [3] of blocks of 256, the first after 32 elements of others",
                "b moment exp_avg_sq: uint8 [20, 30]",
                "b scale exp_avg_sq: fp32 [3] of blocks of 256, the first after 32 elements of others"}));
  EXPECT_EQ(words_of(Described(AdamW{}).parameters[2].plain), (std::vector<std::string>{"fixed parameter: bf16 [6]"}));
}

TEST(StateFits, WhatAnEngineOfTheSameKindHas) {
  for (const Optimizer& optimizer : std::vector<Optimizer>{Sgd{}, AdamW{}, Adafactor{}, Lion{}}) {
    const StateFit fit = Described(optimizer).fit();
    EXPECT_EQ(fit.faults, std::vector<std::string>());
    EXPECT_EQ(fit.kept, (std::vector<char>{1, 1, 0}));
  }
}

TEST(StateFits, WhatWasNeverUpdatedWithoutStateOfItsOptimizer) {
  Described engine(AdamW{});
  std::erase_if(engine.tensors, [](const StateTensor& each) { return each.key.name == "a"; });
  engine.tensors.push_back(engine.parameters[0].plain[0]);
  EXPECT_EQ(engine.fit().faults.size(), 4u);  // it was updated three times
  engine.scalars.updates["a"] = 0;
  EXPECT_EQ(engine.fit().faults, std::vector<std::string>());
  EXPECT_EQ(engine.fit().kept, (std::vector<char>{0, 1, 0}));
}

TEST(StateFits, WhatIsFrozenHereWithStateOfItsOptimizer) {
  Described engine(AdamW{});
  std::erase_if(engine.tensors, [](const StateTensor& each) { return each.key.name == "fixed"; });
  for (const StateTensor& each : engine.parameters[2].kept) engine.tensors.push_back(each);
  engine.scalars.updates["fixed"] = 5;
  EXPECT_EQ(engine.fit().faults, std::vector<std::string>());
  EXPECT_EQ(engine.fit().kept, (std::vector<char>{1, 1, 1}));
}

TEST(StateFits, TellsEveryFault) {
  Described engine(AdamW{});
  engine.at({"a", StateKind::moment, "exp_avg"}).shape = {4, 3};
  engine.at({"b", StateKind::moment, "exp_avg_sq"}).dtype = Dtype::bf16;
  std::erase_if(engine.tensors, [](const StateTensor& each) { return each.key.kind == StateKind::buffer; });
  engine.tensors.push_back({{"c", StateKind::parameter}, Dtype::f32, {2}});
  engine.tensors.push_back(engine.at({"a", StateKind::main_weight}));
  engine.scalars.updates.erase("fixed");
  engine.scalars.updates["d"] = 1;
  engine.scalars.float8["a"] = {};
  std::vector<std::string> faults = engine.fit().faults;
  std::ranges::sort(faults);
  EXPECT_EQ(faults,
            (std::vector<std::string>{
                "a main weight, fp32 [3, 4], is given twice", "a moment exp_avg, fp32 [3, 4], is given as fp32 [4, 3]",
                "a: an FP8 history is not expected", "b moment exp_avg_sq, fp32 [20, 30], is given as bf16 [20, 30]",
                "c parameter, fp32 [2], is not expected", "d: a count of updates is not expected",
                "fixed: how often it was updated is missing", "mean buffer, fp32 [4], is missing"}));
}

// Optimizers that keep as much, of other meanings.
TEST(StateFits, NotStateOfAnotherOptimizer) {
  Described engine(AdamW{}), other(Lion{});
  for (const char* name : {"adamw", "adam", "lamb"}) {
    engine.scalars.optimizers["a"] = name;
    EXPECT_EQ(engine.fit().faults, std::vector<std::string>()) << name;
  }
  EXPECT_EQ(fit_state(engine.parameters, engine.buffers, other.tensors, other.scalars).faults,
            (std::vector<std::string>{
                "the optimizer's state is of lion (exp_avg), and not of adamw (exp_avg, exp_avg_sq): a, b"}));
  engine.scalars.optimizers["a"] = "sgd";
  EXPECT_EQ(engine.fit().faults,
            (std::vector<std::string>{
                "the optimizer's state is of sgd (exp_avg, exp_avg_sq), and not of adamw (exp_avg, exp_avg_sq): a"}));
  engine.scalars.optimizers.clear();
  EXPECT_EQ(engine.fit().faults, std::vector<std::string>()) << "nothing is known of it";
}

// Blocks of 8 bits are cut by a parameter's place in its unit: others' scales say nothing of them.
TEST(StateFits, NotScalesOfOtherBlocks) {
  Described engine(AdamW{.format = MomentFormat::block8});
  EXPECT_EQ(engine.fit().faults, std::vector<std::string>());
  engine.at({"b", StateKind::scale, "exp_avg"}).blocks->before = 64;
  engine.at({"b", StateKind::scale, "exp_avg_sq"}).blocks->order = {1, 0};
  EXPECT_EQ(engine.fit().faults.size(), 2u);
}

TEST(StateLines, TellEveryDifference) {
  Described engine(AdamW{});
  engine.scalars.loss_scaler = {1024, 3, 1};
  engine.scalars.float8["a"] = {{1, 2}, {3}};
  const auto lines = [](const Described& each) { return lines_of(each.tensors, each.scalars); };
  const auto differs = [&](auto change) {
    Described other = engine;
    change(other);
    return lines(other) != lines(engine);
  };
  EXPECT_EQ(lines(engine), lines(Described(engine)));
  EXPECT_TRUE(differs([](Described& e) { e.scalars.steps = 7; }));
  EXPECT_TRUE(differs([](Described& e) { e.scalars.skipped_steps = 7; }));
  EXPECT_TRUE(differs([](Described& e) { e.scalars.micro_batches = 7; }));
  EXPECT_TRUE(differs([](Described& e) { e.scalars.seed = 7; }));
  EXPECT_TRUE(differs([](Described& e) { e.scalars.updates["a"] = 7; }));
  EXPECT_TRUE(differs([](Described& e) { e.scalars.optimizers["a"] = "lion"; }));
  EXPECT_TRUE(differs([](Described& e) { e.scalars.loss_scaler->clean_steps = 4; }));
  EXPECT_TRUE(differs([](Described& e) { e.scalars.float8["a"].gradients = {4}; }));
  EXPECT_TRUE(differs([](Described& e) { e.tensors[1].shape = {12}; }));
}

TEST(LossScalers, GoOnWhereAnotherWas) {
  const LossScale policy{.initial = 1024, .window = 4, .hysteresis = 2};
  LossScaler first(policy), second(policy);
  for (const bool overflow : {false, true, false, false}) first.update(overflow);
  second.resume(first.value(), first.clean_steps(), first.overflows_left());
  for (const bool overflow : {false, true, true, false, false, false, false, true}) {
    first.update(overflow);
    second.update(overflow);
    EXPECT_EQ(first.value(), second.value());
  }
  EXPECT_THROW(second.resume(3, 0, 1), ConfigError);
}

}  // namespace zero::state_test
