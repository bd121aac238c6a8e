// Optimizers as values: what they keep, what is wrong with them, which parameter has which.
#include "zero/optimizer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "device/kernels.h"
#include "optimizers.h"
#include "partition/packed_ranges.h"
#include "zero/error.h"
#include "zero/estimate.h"

namespace zero::test::optimizer_test {

TEST(Optimizer, KeepsAsManyMomentsAsItsPaperHas) {
  EXPECT_EQ(moments(Sgd{}), 0);
  EXPECT_EQ(moments(Sgd{.momentum = 0.9}), 1);
  EXPECT_EQ(moments(AdaGrad{}), 1);
  EXPECT_EQ(moments(RmsProp{}), 1);
  EXPECT_EQ(moments(RmsProp{.momentum = 0.9, .centered = true}), 3);
  EXPECT_EQ(moments(Adam{}), 2);
  EXPECT_EQ(moments(Adam{.amsgrad = true}), 3);
  EXPECT_EQ(moments(AdamW{}), 2);
  EXPECT_EQ(moments(AdamW{.amsgrad = true}), 3);
  EXPECT_EQ(moments(Lion{}), 1);
}

TEST(Optimizer, IsFineWithItsDefaults) {
  for (const Optimizer& optimizer : std::vector<Optimizer>{Sgd{}, AdaGrad{}, RmsProp{}, Adam{}, AdamW{}, Lion{}})
    EXPECT_TRUE(faults(optimizer).empty()) << describe(optimizer);
  for (const Optimizer& optimizer : every_optimizer()) EXPECT_TRUE(faults(optimizer).empty()) << describe(optimizer);
}

TEST(Optimizer, TellsEveryFault) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(faults(AdamW{.lr = -1, .beta1 = 1, .beta2 = nan, .eps = -1, .weight_decay = nan}).size(), 5U);
  EXPECT_EQ(faults(Adam{.beta1 = -0.1}).size(), 1U);
  EXPECT_EQ(faults(Lion{.beta2 = 1}).size(), 1U);
  EXPECT_EQ(faults(Sgd{.nesterov = true}).size(), 1U);
  EXPECT_EQ(faults(Sgd{.momentum = 0.9, .dampening = 0.1, .nesterov = true}).size(), 1U);
  EXPECT_EQ(faults(RmsProp{.alpha = 1}).size(), 1U);
  EXPECT_EQ(faults(AdaGrad{.lr_decay = -1, .initial_accumulator_value = -1}).size(), 2U);
  EXPECT_EQ(faults(AdamW{.lr = std::numeric_limits<double>::infinity()}).front(),
            "adamw: lr must be a number, not negative, but is inf");
}

TEST(Optimizer, DescribesItself) {
  EXPECT_EQ(describe(Lion{.lr = 0.5}), "lion lr 0.5 weight_decay 0 beta1 0.9 beta2 0.99");
  EXPECT_NE(describe(AdamW{}), describe(AdamW{.decay_by_lr = false}));
}

const std::vector<ParameterInfo> kInfos{{.name = "weight", .shape = {4, 8}}, {.name = "bias", .shape = {4}}};

TEST(ParameterRules, TheFirstGroupThatTakesAParameterWins) {
  const auto vectors = [](const ParameterInfo& info) { return info.shape.size() == 1; };
  const auto all = [](const ParameterInfo&) { return true; };
  const auto rules =
      parameter_rules(AdamW{.weight_decay = 0.5},
                      {{.takes = vectors, .weight_decay = 0.0, .lr_scale = 2, .optimizer = Lion{.weight_decay = 0.3}},
                       {.takes = all, .lr_scale = 3}},
                      kInfos);
  EXPECT_EQ(name(rules[0].optimizer), "adamw");
  EXPECT_EQ(weight_decay(rules[0].optimizer), 0.5);
  EXPECT_EQ(rules[0].lr_scale, 3);
  EXPECT_EQ(name(rules[1].optimizer), "lion");
  EXPECT_EQ(weight_decay(rules[1].optimizer), 0.0);
  EXPECT_EQ(rules[1].lr_scale, 2);
}

TEST(ParameterRules, RefuseWhatIsWrongAndNameTheParameter) {
  const auto vectors = [](const ParameterInfo& info) { return info.shape.size() == 1; };
  try {
    parameter_rules(AdamW{.lr = -1}, {{.takes = vectors, .optimizer = Lion{.beta1 = 2}}}, kInfos);
    FAIL();
  } catch (const ConfigError& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("adamw: lr"), std::string::npos) << text;
    EXPECT_NE(text.find("lion: beta1 must be a number, in [0, 1), but is 2 (parameter 'bias')"), std::string::npos)
        << text;
  }
}

Layout layout_of(int ranks) {
  return Layout(std::vector<ParameterSpec>{{.name = "a", .numel = 40, .unit = "u"},
                                           {.name = "b", .numel = 1000, .unit = "u"},
                                           {.name = "c", .numel = 64, .unit = "u"}},
                ranks);
}

TEST(PackedRanges, CoverAllWhereEverySlotIsKept) {
  const Layout layout = layout_of(2);
  const UnitLayout& unit = layout.units()[0];
  const PackedRanges runs(unit, unit.shard_length(), unit.length(), [](const Slot&) { return true; });
  EXPECT_EQ(runs.length(), unit.shard_length());
  EXPECT_EQ(runs.at(unit.shard_length()), 0);
  EXPECT_EQ(runs.at(unit.length() - 1), unit.shard_length() - 1);
}

TEST(PackedRanges, LeaveOutWhatIsNotKept) {
  const Layout layout = layout_of(1);
  const UnitLayout& unit = layout.units()[0];
  const PackedRanges runs(unit, 0, unit.length(), [](const Slot& slot) { return slot.name != "b"; });
  const Slot &b = unit.slots()[1], &c = unit.slots()[2];
  EXPECT_EQ(runs.length(), b.begin + unit.length() - c.begin);
  EXPECT_EQ(runs.at(39), 39);
  EXPECT_EQ(runs.at(c.begin), b.begin);
  EXPECT_EQ(PackedRanges(unit, 0, unit.length(), [](const Slot&) { return false; }).length(), 0);
}

TEST(PackedRanges, CostWhatTheRankWithMostHolds) {
  const auto few = [](const ParameterInfo& info) { return info.name != "b"; };
  const Layout layout = layout_of(2);
  const UnitLayout& unit = layout.units()[0];
  const std::vector<ParameterInfo> infos{{.name = "a"}, {.name = "b"}, {.name = "c"}};
  const auto rules = parameter_rules(Sgd{}, {{.takes = few, .optimizer = Lion{}}}, infos);
  const std::int64_t first = unit.slots()[1].begin, second = unit.length() - unit.slots()[2].begin;
  EXPECT_EQ(estimate(Plan::zero3(), layout, rules, Trace::sequential(layout)).state.optimizer,
            4 * std::max(first, second));
  EXPECT_EQ(estimate(Plan::ddp(), layout, rules, Trace::sequential(layout)).state.optimizer, 4 * (first + second));
}

// One element, one step, in words of its own.
float updated(const Optimizer& optimizer, float weight, float gradient) {
  std::array<float, kMaxMoments> moment{};
  run_on_host(
      Update{optimizer,
             {.lr = learning_rate(optimizer), .step = 1},
             {.main = &weight, .gradient = &gradient, .moments = {&moment[0], &moment[1], &moment[2]}, .count = 1}});
  return weight;
}

TEST(Update, PutsEpsilonOfRmsPropWhereItIsTold) {
  const double v = 0.01 * 4;
  EXPECT_FLOAT_EQ(updated(RmsProp{.lr = 0.1, .eps = 0.5}, 1, 2),
                  static_cast<float>(1 - 0.1 * 2 / (std::sqrt(v) + 0.5)));
  EXPECT_FLOAT_EQ(updated(RmsProp{.lr = 0.1, .eps = 0.5, .eps_inside_root = true}, 1, 2),
                  static_cast<float>(1 - 0.1 * 2 / std::sqrt(v + 0.5)));
}

TEST(Update, DecaysIndependentlyOfTheLearningRateWhenTold) {
  EXPECT_FLOAT_EQ(updated(AdamW{.lr = 0.5, .weight_decay = 0.25}, 1, 0), 1 - 0.5F * 0.25F);
  EXPECT_FLOAT_EQ(updated(AdamW{.lr = 0.5, .weight_decay = 0.25, .decay_by_lr = false}, 1, 0), 0.75F);
}

}  // namespace zero::test::optimizer_test
