#include "zero/plan.h"

#include <gtest/gtest.h>

#include <cmath>

#include "zero/error.h"
#include "zero/ledger.h"
#include "zero/optimizer.h"

namespace zero::plan_test {

constexpr Row kReplicated{};
constexpr Placements kWhole{};
constexpr Placements kSums = Placements::over_data(Placement::partial);
constexpr Placements kSlices = Placements::over_data(Placement::sharded);
constexpr Row kSharded{.rest = kSlices, .between = kSlices};
constexpr Row kReduced{.between = kSums};
constexpr Row kReducedToShards{.rest = kSlices, .between = kSums};

bool mentions(const std::vector<std::string>& faults, std::string_view words) {
  for (const std::string& fault : faults) {
    if (fault.find(words) != std::string::npos) return true;
  }
  return false;
}

// Where nothing else is said, by the hosts.
TEST(PlanOverlap, IsOfTwoUnitsOverSeveralHosts) {
  EXPECT_EQ(Plan::zero3().on(4).on_their_way(), 1);
  EXPECT_EQ(Plan::zero3().on(4, 4).on_their_way(), 1);
  for (const int here : {1, 2, 3}) EXPECT_EQ(Plan::zero3().on(4, here).on_their_way(), 2);
  for (const Plan& plan : {Plan::ddp(), Plan::zero1()})
    EXPECT_EQ(plan.on(4, 2).on_their_way(), 1) << "nothing is reduced in each micro-batch";
  for (const Plan& plan : {Plan::zero2(), Plan::hybrid(), Plan::hybrid_zero2()})
    EXPECT_EQ(plan.on(MeshShape(4, {.shard = 2}), 2).on_their_way(), 2) << plan.label();
  EXPECT_EQ(Plan::zero3().overlap(1).on(4, 2).on_their_way(), 1);
  EXPECT_EQ(Plan::zero3().overlap(2).on(4).on_their_way(), 2);
  EXPECT_EQ(Plan::zero3().on(4, 2).label(), "zero3");
  for (const int units : {-1, 3}) EXPECT_FALSE(Plan::zero3().overlap(units).faults(4).empty()) << units;
}

TEST(Plan, PresetsAreTheRowsOfThePaper) {
  struct Expected {
    std::string_view name;
    Row parameter, gradient, optimizer;
  };
  for (const Expected& e :
       {Expected{"ddp", kReplicated, kReduced, kReplicated}, Expected{"zero1", kReplicated, kReducedToShards, kSharded},
        Expected{"zero2", kReplicated, kSharded, kSharded}, Expected{"zero3", kSharded, kSharded, kSharded}}) {
    const Plan plan = Plan::named(e.name);
    EXPECT_EQ(plan.label(), e.name);
    EXPECT_EQ(plan[State::parameter], e.parameter) << e.name;
    EXPECT_EQ(plan[State::gradient], e.gradient) << e.name;
    EXPECT_EQ(plan[State::optimizer], e.optimizer) << e.name;
    EXPECT_EQ(plan[State::activation], kReplicated) << e.name;
  }
}

TEST(Plan, PresetsHaveNoFaultsOnAnyNumberOfRanks) {
  for (const std::string_view preset : Plan::presets()) {
    for (const int ranks : {1, 2, 3, 64, 1000}) {
      EXPECT_TRUE(Plan::named(preset).faults(ranks).empty()) << preset;
      EXPECT_TRUE(Plan::named(preset).on(ranks).faults(ranks).empty()) << preset;
      EXPECT_NO_THROW(Plan::named(preset).validate(ranks));
    }
  }
}

TEST(Plan, AnUnknownPresetListsTheKnownOnes) {
  try {
    Plan::named("zero4");
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_STREQ(error.what(),
                 "unknown plan 'zero4' (one of ddp, zero1, zero2, zero3, hybrid, hybrid-zero2, zeropp, sdp4bit)");
  }
}

TEST(Plan, SettersChangeCopies) {
  const Plan plan = Plan::zero3();
  const Plan other = plan.bf16().accumulate(4).reproducible(true).resident_budget(1 << 20);
  EXPECT_EQ(plan, Plan::zero3());
  EXPECT_NE(plan, other);
  EXPECT_EQ(other.precision(), Precision::bf16);
  EXPECT_EQ(other.accumulate(), 4);
  EXPECT_TRUE(other.reproducible());
  EXPECT_EQ(other.resident_budget(), 1 << 20);
  EXPECT_EQ(other.fp32().accumulate(1).reproducible(false).resident_budget(0), plan);
}

TEST(Plan, IsCalledByItsRows) {
  for (const std::string_view preset : Plan::exact_presets()) {
    Plan plan = Plan::named(preset).bf16().accumulate(2).gather_in(Wire::fp8);
    EXPECT_EQ(plan.label(), preset) << "settings are not rows";
    EXPECT_EQ(plan.on(1).label(), preset);
    EXPECT_EQ(plan.on(1).on(1).label(), preset);
    plan = plan.offload(State::optimizer, Tier::host).offload(State::gradient, Tier::disk);
    for (const Plan& each : {plan, plan.on(1)}) {
      EXPECT_EQ(each.preset(), preset) << "tiers are not placements";
      EXPECT_EQ(each.label(), std::string(preset) + ", optimizer on host, gradient on disk");
    }
    const Plan both = plan.offload(State::optimizer, Tier::disk);
    EXPECT_EQ(both.label(), std::string(preset) + ", gradient and optimizer on disk");
    EXPECT_EQ(both.offload(State::parameter, Tier::disk).label(), std::string(preset) + ", all on disk");
    EXPECT_EQ(both.delay_update().label(), both.label() + ", delayed update");
    plan = plan.offload(State::optimizer, Tier::device).offload(State::gradient, Tier::device);
    EXPECT_EQ(plan.label(), preset);
    plan[State::activation] = kSharded;
    EXPECT_EQ(plan.label(), "custom");
  }
  Plan plan = Plan::zero3();
  plan[State::parameter] = kReplicated;
  EXPECT_EQ(plan.label(), "zero2");
  plan[State::gradient] = kReduced;
  EXPECT_EQ(plan.label(), "custom");
  plan[State::optimizer] = kReplicated;
  EXPECT_EQ(plan.label(), "ddp");
  Plan alone = Plan::zero1().on(1);
  alone[State::optimizer] = kSharded;
  EXPECT_EQ(alone.label(), "custom");
  EXPECT_EQ(Plan().label(), "custom");
}

TEST(Plan, OffloadsAShareOfTheOptimizer) {
  const Plan all = Plan::zero2().offload(State::optimizer, Tier::host),
             most = all.offload(State::optimizer, Tier::host, 0.8);
  EXPECT_NE(all, most);
  EXPECT_EQ(most, Plan::zero2().offload(State::optimizer, Tier::host, 0.8));
  EXPECT_EQ(most.offload(State::optimizer, Tier::host), all);
  EXPECT_EQ(most.label(), "zero2, 0.8 of optimizer on host");
  EXPECT_EQ(most.on(1).label(), most.label());
  EXPECT_EQ(most.on(1)[State::optimizer].share, 0.8);
  EXPECT_TRUE(most.faults(2).empty());
  for (const double share : {0.0, -0.5, 1.5, std::nan("")})
    EXPECT_TRUE(mentions(all.offload(State::optimizer, Tier::host, share).faults(2), "above 0, and at most 1"))
        << share;
  EXPECT_TRUE(mentions(all.offload(State::optimizer, Tier::device, 0.5).faults(2), "nothing is offloaded"));
  EXPECT_TRUE(
      mentions(all.offload(State::gradient, Tier::host, 0.5).faults(2), "a share of 0.5 of gradient on tier host"));
}

TEST(Plan, OnlySinglePrecisionIsComputedInBf16) {
  for (const Dtype dtype : {Dtype::f32, Dtype::f64, Dtype::bf16, Dtype::f16, Dtype::i64}) {
    EXPECT_EQ(Plan::ddp().compute_dtype(dtype), dtype);
    EXPECT_EQ(Plan::ddp().bf16().compute_dtype(dtype), dtype == Dtype::f32 ? Dtype::bf16 : dtype);
  }
}

TEST(Plan, OneRankShardsNothing) {
  for (const std::string_view preset : Plan::exact_presets()) {
    const Plan plan = Plan::named(preset).on(1);
    EXPECT_EQ(plan[State::parameter], kReplicated) << preset;
    EXPECT_EQ(plan[State::gradient], kReduced) << preset;
    EXPECT_EQ(plan[State::optimizer], kReplicated) << preset;
  }
  for (const std::string_view stage : Plan::stages()) EXPECT_EQ(Plan::named(stage).on(2), Plan::named(stage));
}

TEST(Plan, OneGroupOfRanksIsAllOfThem) {
  for (const Plan& plan : {Plan::hybrid(), Plan::hybrid_zero2()}) {
    const Plan on = plan.on(4);
    for (const State state : {State::parameter, State::gradient, State::optimizer})
      EXPECT_EQ(on[state], Plan::zero3()[state]);
    EXPECT_EQ(on.label(), plan.label());
    EXPECT_EQ(on.on(4), on);
    EXPECT_EQ(plan.on(MeshShape(4, {.shard = 2})), plan);
  }
}

TEST(Plan, TellsWhatCannotBeOnAMesh) {
  const MeshShape mesh(6, {.shard = 3});
  Plan plan = Plan::hybrid();
  plan[State::parameter] = kSharded;
  plan[State::gradient].rest = {.replica = Placement::sharded};
  EXPECT_TRUE(mentions(plan.faults(mesh), "parameter sharded over data needs optimizer sharded over data"));
  EXPECT_TRUE(mentions(plan.faults(mesh), "gradient can be sharded over shard or data"));
  EXPECT_TRUE(mentions(plan.faults(mesh), "not otherwise along replica"));
  plan = Plan::zero1();
  plan[State::gradient].between = {.replica = Placement::replicated, .shard = Placement::partial};
  EXPECT_TRUE(mentions(plan.faults(mesh), "gradient can be sharded over shard or data"));
  EXPECT_TRUE(mentions(plan.faults(mesh), "not otherwise along shard"));
  plan = Plan::hybrid_zero2();
  plan[State::gradient].rest = {.shard = Placement::sharded};
  EXPECT_TRUE(mentions(plan.faults(mesh), "gradient sharded over data between micro-batches cannot be"));
  plan[State::gradient].between = kSums;
  EXPECT_FALSE(mentions(plan.faults(mesh), "between micro-batches"));
  plan = Plan::zero3();
  plan[State::parameter].rest.tensor = plan[State::parameter].between.tensor = Placement::sharded;
  EXPECT_TRUE(mentions(plan.faults(mesh), "not otherwise along tensor"));
}

// Between shard groups, of which hosts are some: what a group keeps, and in what gradients cross.
TEST(Plan, KeepsWhatWasGatheredInGroups) {
  const MeshShape hosts(4, {.shard = 2});
  EXPECT_EQ(Plan::zero3().kept(), KeptCopy::none);
  for (const KeptCopy copy : {KeptCopy::shard, KeptCopy::host}) {
    const Plan plan = Plan::zero3().keep_gathered(copy);
    EXPECT_EQ(plan.kept(), copy);
    EXPECT_EQ(plan.preset(), "zero3");
    EXPECT_EQ(plan.label(), "zero3, kept copy on " + std::string(name(copy)));
    EXPECT_TRUE(plan.faults(hosts).empty());
    EXPECT_EQ(plan.keep_gathered(KeptCopy::none), Plan::zero3());
    EXPECT_TRUE(mentions(plan.offload(State::parameter, Tier::disk).faults(hosts), "parameters on the device"));
  }
  const Plan whole = Plan::zero2().keep_gathered(KeptCopy::shard);
  EXPECT_TRUE(mentions(whole.faults(hosts), "needs sharded parameters"));
  const Plan kept = Plan::zero3().keep_gathered(KeptCopy::shard);
  EXPECT_EQ(kept.on(4).kept(), KeptCopy::none) << "one group has all of it";
  EXPECT_EQ(kept.on(MeshShape(4, {.shard = 1})).kept(), KeptCopy::host) << "a rank alone is a group";
}

TEST(Plan, ZeroPlusPlusIsCalledByAllThatItChooses) {
  const Plan plan = Plan::zeropp().bf16();
  EXPECT_EQ(plan.label(), "zeropp");
  for (const MeshShape& mesh : {MeshShape(1), MeshShape(4), MeshShape(4, {.shard = 2}), MeshShape(4, {.shard = 1})}) {
    EXPECT_EQ(plan.on(mesh).preset(), "zeropp") << mesh.text();
    EXPECT_TRUE(plan.on(mesh).faults(mesh).empty()) << mesh.text();
  }
  EXPECT_EQ(plan.gather_in(Wire::native).label(), "zero3, kept copy on shard");
  const Plan exact = plan.gather_in(Wire::native).keep_gathered(KeptCopy::none).reduce_in(Wire::native);
  for (const State state : {State::parameter, State::gradient, State::optimizer})
    EXPECT_EQ(exact[state], Plan::zero3()[state]);
  EXPECT_EQ(exact.label(), "zero3");
  EXPECT_TRUE(mentions(plan.reproducible(true).faults(4), "reduce them in fp32, not in int4"));
}

TEST(Plan, SendsDifferencesFromWhatIsKept) {
  const MeshShape hosts(4, {.shard = 2});
  const Plan plan = Plan::sdp4bit().bf16();
  EXPECT_EQ(plan.label(), "sdp4bit");
  for (const MeshShape& mesh : {MeshShape(1), MeshShape(4), hosts, MeshShape(4, {.shard = 1})}) {
    EXPECT_EQ(plan.on(mesh).preset(), "sdp4bit") << mesh.text();
    EXPECT_TRUE(plan.on(mesh).faults(mesh).empty()) << mesh.text();
  }
  EXPECT_EQ(plan.on(4)[State::parameter].wire, Wire::native) << "nothing crosses";
  EXPECT_EQ(plan.on(hosts)[State::parameter].wire, Wire::int4_differences);
  const Plan in_groups = Plan::hybrid().keep_gathered(KeptCopy::host).gather_in(Wire::int4_differences);
  EXPECT_TRUE(mentions(in_groups.faults(hosts), "sharded over data, as zero3 has it"));
  EXPECT_TRUE(mentions(Plan::zero3().gather_in(Wire::int4_differences).faults(hosts), "needs a copy"));
  EXPECT_TRUE(mentions(Plan::zero3().reduce_in(Wire::int4_differences).faults(hosts), "gradient on wire int4-differe"));
  EXPECT_TRUE(Plan::zeropp().error_feedback(true).faults(hosts).empty());
  for (const Wire wire : {Wire::native, Wire::bf16})
    EXPECT_TRUE(mentions(Plan::zero3().reduce_in(wire).error_feedback(true).faults(hosts), "error feedback is of"));
}

// A rank that updates a part of what it holds would have the rest of it written by others.
TEST(Plan, HasParametersOnDiskWhereRanksUpdateAllThatTheyHold) {
  for (const std::string_view preset : Plan::exact_presets()) {
    const Plan plan = Plan::named(preset).offload(State::parameter, Tier::disk);
    EXPECT_TRUE(plan.faults(1).empty()) << preset;
    const bool publishes = preset == "zero1" || preset == "zero2";
    EXPECT_EQ(mentions(plan.faults(2), "parameter on tier disk needs"), publishes) << preset;
    EXPECT_EQ(mentions(plan.faults(MeshShape(4, {.shard = 2})), "parameter on tier disk needs"),
              publishes || preset == "hybrid-zero2")
        << preset;
  }
}

TEST(Plan, AllFaultsAreListedAtOnce) {
  Plan plan = Plan::zero3().accumulate(0).resident_budget(-1);
  plan[State::activation].tier = Tier::disk;
  plan[State::gradient] = {.between = kSlices, .tier = Tier::host};
  plan[State::optimizer] = {.rest = kSums, .between = kSums, .wire = Wire::int4};
  plan[State::activation].rest = kSlices;
  const std::vector<std::string> faults = plan.faults(0);
  for (const std::string_view words :
       {"not 0", "accumulate", "resident_budget", "optimizer is a value", "gradient sharded between",
        "activation cannot", "activation on tier disk", "gradient on tier host", "optimizer on wire int4"}) {
    EXPECT_TRUE(mentions(faults, words)) << words;
  }
  EXPECT_EQ(faults.size(), 9u);
  try {
    plan.validate(0);
    FAIL();
  } catch (const ConfigError& error) {
    for (const std::string& fault : faults) EXPECT_NE(std::string(error.what()).find(fault), std::string::npos);
  }
}

TEST(Plan, CountsOneRank) {
  for (const auto& [ranks, words] : {std::pair(1, "cannot run on 1 rank: "), std::pair(2, "cannot run on 2 ranks: ")})
    try {
      Plan::zero1().accumulate(0).validate(ranks);
      FAIL();
    } catch (const ConfigError& error) {
      EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
    }
}

TEST(Plan, StatesThatDoNotFitEachOtherAreFaults) {
  Plan plan = Plan::zero3();
  plan[State::optimizer] = kReplicated;
  EXPECT_TRUE(mentions(plan.faults(2), "gradient sharded needs optimizer sharded"));
  EXPECT_TRUE(mentions(plan.faults(2), "parameter sharded needs optimizer sharded"));

  plan = Plan::zero2();
  plan[State::gradient].rest = kSums;
  EXPECT_EQ(plan.faults(2).size(), 1u);
  plan[State::gradient] = kReplicated;
  EXPECT_EQ(plan.faults(2).size(), 1u);

  plan = Plan::zero3();
  plan[State::optimizer].between = kWhole;
  EXPECT_TRUE(mentions(plan.faults(2), "optimizer is sharded at rest but replicated between"));
}

TEST(Plan, GradientsTravelByAWireOrADtype) {
  const Plan plan = Plan::zero2();
  EXPECT_EQ(plan.reduce_in(Wire::bf16), plan.reduce_in(Dtype::bf16));
  EXPECT_EQ(plan.reduce_in(Wire::fp16).reduce_in(Wire::native), plan);
  EXPECT_EQ(plan.reduce_in(Wire::fp32).reduction(), Dtype::f32);
  EXPECT_FALSE(plan.reduce_in(Wire::fp8).reduction()) << "inside a group they travel as they are";
  EXPECT_THROW(static_cast<void>(plan.reduce_in(Dtype::f64)), ConfigError);
}

TEST(Plan, TablesWithoutAPresetAreFine) {
  Plan plan = Plan::zero3();
  plan[State::gradient] = kReducedToShards;
  EXPECT_TRUE(plan.faults(4).empty());
  plan = Plan::zero1();
  plan[State::gradient] = kReduced;
  EXPECT_TRUE(plan.faults(4).empty());
}

TEST(Optimizer, NormsBiasesAndEmbeddingsDoNotDecay) {
  const ParamGroup group = no_decay_on_norms_biases_embeddings();
  EXPECT_EQ(group.weight_decay, 0.0);
  EXPECT_EQ(group.lr_scale, 1.0);
  EXPECT_TRUE(group.takes({.name = "scale", .shape = {}}));
  EXPECT_TRUE(group.takes({.name = "bias", .shape = {8}}));
  EXPECT_TRUE(group.takes({.name = "table", .shape = {8, 8}, .embedding = true}));
  EXPECT_FALSE(group.takes({.name = "weight", .shape = {8, 8}}));
}

TEST(Ledger, KeepsThePeaks) {
  Ledger ledger;
  ledger.add(Owner::parameter, 10);
  ledger.add(Owner::gathered, 5);
  ledger.add(Owner::gathered, -5);
  ledger.add(Owner::reduction, 2);
  EXPECT_EQ(ledger.total(), 12);
  EXPECT_EQ(ledger.peak_total, 15);
  EXPECT_EQ(ledger[Owner::gathered].bytes, 0);
  EXPECT_EQ(ledger[Owner::gathered].peak, 5);
  EXPECT_EQ(name(Owner::reduction), "reduction");
}

}  // namespace zero::plan_test
