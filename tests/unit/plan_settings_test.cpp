// The table of a plan's settings.
#include "partition/plan_settings.h"

#include <gtest/gtest.h>

#include <set>

#include "zero/error.h"

namespace zero::plan_settings_test {

const Plan& plan() {
  static const Plan all = Plan::zero3()
                              .bf16()
                              .accumulate(4)
                              .reproducible(true)
                              .resident_budget(1 << 20)
                              .overlap(2)
                              .activation_budget({.share = .5})
                              .activations_in(Wire::int8)
                              .reduce_in(Dtype::f32)
                              .error_feedback(true)
                              .gather_in(Wire::fp8)
                              .keep_gathered(KeptCopy::shard)
                              .offload(State::optimizer, Tier::host)
                              .offload(State::gradient, Tier::host)
                              .delay_update();
  return all;
}

TEST(PlanSettings, EachIsSetToWhatItSays) {
  std::set<std::string_view> names;
  Plan made = Plan::zero3();
  for (const PlanSetting& each : plan_settings()) {
    EXPECT_TRUE(names.insert(each.name).second) << each.name;
    EXPECT_NE(each.get(plan()), each.get({})) << each.name << ": the plan above has another than the default";
    const Plan alone = each.set(Plan::zero3(), each.get(plan()));
    EXPECT_NE(alone, Plan::zero3()) << each.name;
    EXPECT_EQ(each.get(alone), each.get(plan())) << each.name;
    EXPECT_EQ(each.set(alone, each.get({})), Plan::zero3()) << each.name << ": back to the default";
    made = each.set(made, each.get(plan()));
  }
  EXPECT_EQ(made, plan());
}

TEST(PlanSettings, AreOfAPlanWhateverItsPreset) {
  const PlanSettings settings(plan());
  EXPECT_EQ(settings.plan(Plan::zero3()), plan());
  EXPECT_EQ(PlanSettings(settings.plan(Plan::zero2())), settings);
  EXPECT_NE(settings, PlanSettings());
}

TEST(PlanSettings, HaveDefaultsUntilTheyAreSaid) {
  PlanSettings settings{{"precision", "bf16"}};
  EXPECT_TRUE(settings.says("precision"));
  EXPECT_FALSE(settings.says("accumulate"));
  EXPECT_EQ(settings.text("accumulate"), "1");
  settings.set("accumulate", std::int64_t{2});
  settings.said("reproducible") = true;
  EXPECT_EQ(settings.plan(Plan::ddp()), Plan::ddp().bf16().accumulate(2).reproducible(true));
  settings.forget("precision");
  EXPECT_EQ(settings.text("precision"), "fp32");
  EXPECT_THROW(settings["precison"], ConfigError);
}

TEST(PlanSettings, RefuseWhatThereIsNot) {
  for (const auto& [name, text] : {std::pair("precision", "fp4"),
                                   {"reduce_in", "int3"},
                                   {"keep_gathered", "all"},
                                   {"gather_in", "fp3"},
                                   {"offload", "optimizer=moon"}})
    EXPECT_THROW(PlanSettings({{name, text}}).plan(), ConfigError) << name;
}

// What ranks compare, in these words; what is not among them is told by the label or the table's rows.
TEST(PlanSettings, AreToldToTheOtherRanks) {
  std::vector<std::string> usual, all;
  for (const PlanSetting& each : plan_settings()) {
    if (!each.told) continue;
    usual.push_back(words_of(each, Plan::zero3()));
    all.push_back(words_of(each, plan()));
  }
  EXPECT_EQ(usual, (std::vector<std::string>{"accumulate 1", "running sums", "overlap 0",
                                             "gradients reduced in their own dtype", "error_feedback off",
                                             "delay_update off"}));
  EXPECT_EQ(all, (std::vector<std::string>{"accumulate 4", "reproducible sums", "overlap 2",
                                           "gradients reduced in fp32", "error_feedback on", "delay_update on"}));
}

}  // namespace zero::plan_settings_test
