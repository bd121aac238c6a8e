#include "partition/routes.h"

#include <gtest/gtest.h>

#include <map>

namespace zero::routes_test {

// Two trainable units and a frozen one between them, of 100, 7 and 100 elements.
Layout layout_on(const MeshShape& mesh, Dtype dtype = Dtype::f32) {
  const std::vector<ParameterSpec> specs{
      {.name = "a", .numel = 100, .dtype = dtype, .unit = "a"},
      {.name = "frozen", .numel = 7, .dtype = dtype, .trainable = false, .unit = "frozen"},
      {.name = "b", .numel = 100, .dtype = dtype, .unit = "b"}};
  return Layout(specs, mesh);
}

const MeshShape kTwoByThree(6, {.shard = 3});  // 2 replicas of 3 ranks

// What happens to one unit, as rank 0 has it.
std::vector<Transition> of(const Plan& plan, const Layout& layout, int unit = 0) {
  const Plan resolved = plan.on(layout.mesh());
  return Routes(resolved).of(layout.unit(unit));
}

// The moments, with the bytes of their hops.
std::string text_of(const std::vector<Transition>& transitions) {
  static const std::map<When, std::string> kWhen{
      {When::use, "use"}, {When::gradient, "gradient"}, {When::sum, "sum"}, {When::update, "update"}};
  std::string text;
  for (const Transition& each : transitions) {
    text += each.joined ? "+" : text.empty() ? "" : ", ";
    text += kWhen.at(each.when) + " " + std::string(name(each.state));
    for (const Hop& hop : each.route.hops)
      text += " " + std::string(name(hop.collective)) + "/" + std::string(name(hop.axis)) + "/" +
              std::to_string(each.route.bytes(hop)) +
              (each.route.bytes(hop) == Route::sum_bytes(hop) || hop.collective == Collective::all_gather
                   ? ""
                   : "/" + std::to_string(Route::sum_bytes(hop)));
  }
  return text;
}

TEST(Routes, OfTheStagesAreThoseOfThePaper) {
  const Layout layout = layout_on(4);
  const std::string slice = std::to_string(4 * layout.units()[0].shard_length());
  const std::string reduce = " gradient reduce_scatter/shard/" + slice, gather = " parameter all_gather/shard/" + slice;
  EXPECT_EQ(text_of(of(Plan::ddp(), layout)), "sum" + reduce + "+sum gradient all_gather/shard/" + slice);
  EXPECT_EQ(text_of(of(Plan::zero1(), layout)), "sum" + reduce + ", update" + gather);
  EXPECT_EQ(text_of(of(Plan::zero2(), layout)), "gradient" + reduce + ", update" + gather);
  EXPECT_EQ(text_of(of(Plan::zero3(), layout)), "use" + gather + ", gradient" + reduce);
}

// Of two groups, or of three of one rank, all that a rank sends across; one byte a value, and one for each 128.
TEST(Routes, HaveErrorsOfWhatCrossesInCodes) {
  for (const MeshShape& mesh : {kTwoByThree, MeshShape(3, {.shard = 1}), MeshShape(4)}) {
    const Layout layout = layout_on(mesh);
    for (const std::string_view preset : Plan::exact_presets()) {
      const Plan plan = Plan::named(preset).reduce_in(Wire::int4).error_feedback(true).on(mesh);
      const std::int64_t length = layout.unit(0).length(), shard = mesh.size(Axis::shard);
      for (int rank = 0; rank < mesh.size(); ++rank) {
        const Routes routes(plan, rank);
        const std::vector<Routes::Errors> errors = routes.errors(layout.unit(0));
        std::int64_t next = length / shard * mesh.at(Axis::shard, rank), bytes = 0;
        ASSERT_EQ(errors.size(), mesh.size(Axis::replica) > 1 ? mesh.size(Axis::replica) : 0) << plan.label();
        for (int group = 0; const Routes::Errors& each : errors) {
          const bool own = group++ == mesh.at(Axis::replica, rank);
          EXPECT_EQ(each.of, (Slice{next, length / mesh.size()})) << "each after the one before";
          EXPECT_EQ(each.at, own ? std::nullopt : std::optional(bytes));
          next = each.of.end();
          if (!own) bytes += each.of.count + (each.of.count + 127) / 128;
        }
        EXPECT_EQ(routes.error_bytes(layout.unit(0)), bytes);
        const Plan none = plan.error_feedback(false);
        EXPECT_TRUE(Routes(none, rank).errors(layout.unit(0)).empty());
      }
    }
  }
}

TEST(Routes, OfFrozenUnitsAreForTheirUseAlone) {
  const Layout layout = layout_on(4);
  for (const std::string_view preset : Plan::stages()) {
    const std::vector<Transition> all = of(Plan::named(preset), layout, 1);
    EXPECT_EQ(all.size(), preset == "zero3" ? 1U : 0U) << preset;
  }
}

TEST(Routes, AreNoneOnOneRank) {
  for (const std::string_view preset : Plan::presets())
    for (const int unit : {0, 1, 2}) EXPECT_TRUE(of(Plan::named(preset), layout_on(1), unit).empty()) << preset;
}

// What is on disk is read for its use, and gathered where it is a slice.
TEST(Routes, ComeFromTheTierOfTheParameters) {
  const Layout one = layout_on(1), four = layout_on(4);
  const auto on_disk = [](const Plan& plan) { return plan.offload(State::parameter, Tier::disk); };
  for (const std::string_view preset : Plan::presets())
    for (const int unit : {0, 1, 2})
      EXPECT_EQ(text_of(of(on_disk(Plan::named(preset)), one, unit)), "use parameter") << preset;
  EXPECT_EQ(of(on_disk(Plan::zero3()), four), of(Plan::zero3(), four));
  EXPECT_EQ(text_of(of(on_disk(Plan::ddp()), four)), "use parameter, " + text_of(of(Plan::ddp(), four)));
}

TEST(Routes, HaveTheDtypesOfThePlan) {
  const Layout layout = layout_on(2, Dtype::bf16);
  const Hop once = of(Plan::zero2().bf16(), layout)[0].route.hops[0];
  EXPECT_EQ(once.sent, Dtype::bf16);
  EXPECT_EQ(once.kept, Dtype::f32);
  const std::vector<Transition> several = of(Plan::zero1().bf16().accumulate(2).reduce_in(Dtype::bf16), layout);
  EXPECT_EQ(several[0].route.hops[0].sent, Dtype::bf16);
  EXPECT_EQ(several[1].route.hops[0].sent, Dtype::bf16);
  EXPECT_EQ(of(Plan::zero1().bf16().accumulate(2), layout)[0].route.hops[0].sent, Dtype::f32);
}

TEST(Routes, SendASliceToEachOtherRank) {
  const Layout layout = layout_on(4, Dtype::bf16);
  const UnitLayout& unit = layout.units()[0];
  const std::int64_t slice = unit.shard_length();
  EXPECT_EQ(text_of({of(Plan::zero2().bf16(), layout)[0]}),
            "gradient gradient reduce_scatter/shard/" + std::to_string(2 * slice) + "/" + std::to_string(4 * slice));
  const Transition coded = of(Plan::zero3().gather_in(Wire::fp8), layout).front();
  EXPECT_EQ(coded.route.codec, Wire::fp8);
  EXPECT_LT(coded.route.bytes(coded.route.hops.front()), 2 * slice);
  const Plan plan = Plan::zero3().gather_in(Wire::fp8).on(4);
  EXPECT_EQ(Routes(plan).use(unit, /*exactly=*/true).codec, Wire::native);
}

// Of rank 4, the second of the second replica: each hop goes on from what the one before it left.
TEST(Routes, AreOfOneRank) {
  const Layout layout = layout_on(kTwoByThree);
  const UnitLayout& unit = layout.units()[0];
  const std::int64_t sixth = unit.length() / 6;
  const Plan plan = Plan::zero3().on(kTwoByThree);
  const Routes routes(plan, 4);
  const Slice own{3 * sixth, sixth}, of_group{2 * sixth, 2 * sixth}, all{0, 6 * sixth};
  const Route use = routes.use(unit), reduce = routes.reduce(unit);
  EXPECT_EQ(use, (Route{own,
                        all,
                        Wire::native,
                        {{Collective::all_gather, Axis::replica, own, of_group},
                         {Collective::all_gather, Axis::shard, of_group, all}}}));
  EXPECT_EQ(use.room(), all);
  EXPECT_EQ(reduce,
            (Route{all,
                   own,
                   Wire::native,
                   {{Collective::reduce_scatter, Axis::shard, all, of_group, Dtype::f32, Dtype::f32, {3, 1, 6}},
                    {Collective::reduce_scatter, Axis::replica, of_group, own, Dtype::f32, Dtype::f32, {0, 3, 6}}}}));
  EXPECT_EQ(reduce.room(), of_group);
  // Leaf 3, and 4 and 5; then all.
  EXPECT_TRUE(reduce.several());
  EXPECT_EQ(reduce.hops[0].sums(), 2);
  EXPECT_EQ(reduce.hops[1].brought(), 2);
  EXPECT_EQ(reduce.hops[1].sums(), 1);
  EXPECT_EQ(reduce.numbers(), 2 * of_group.count + own.count);
}

// Each micro-batch's is another part of a tree; plans that add up first bring what they have of it.
TEST(Routes, OfReproducibleSumsAreByMicroBatches) {
  const Layout layout = layout_on(3);
  const UnitLayout& unit = layout.units()[0];
  const Plan each = Plan::zero2().accumulate(4).reproducible(true),
             once = Plan::zero1().accumulate(5).reproducible(true);
  for (int micro = 0; micro < 4; ++micro)
    EXPECT_EQ(Routes(each).reduce(unit, micro).hops[0].leaves, (Leaves{3 * micro, 1, 12}));
  EXPECT_EQ(Routes(each).reduce(unit, 1).numbers(), 2 * unit.shard_length());
  EXPECT_EQ(Routes(once).reduce(unit).hops[0].leaves, (Leaves{0, 5, 15}));
  EXPECT_EQ(Routes(once).reduce(unit).hops[0].brought(), 3);
  EXPECT_TRUE(Routes(once).flat(unit, Routes(once).reduce(unit), Dtype::f32, false));
}

// A group of one rank is no hop, and takes no room.
TEST(Routes, OfGroupsOfOneRankGoAcrossAlone) {
  const Layout layout = layout_on(MeshShape(4, {.shard = 1}));
  const UnitLayout& unit = layout.units()[0];
  const Plan plan = Plan::zero2().on(layout.mesh());
  const Route reduce = Routes(plan, 1).reduce(unit);
  ASSERT_EQ(reduce.hops.size(), 1U);
  EXPECT_EQ(reduce.hops[0].axis, Axis::replica);
  EXPECT_EQ(reduce.room(), unit.slice(Axis::data, 1));
}

// Inside first, then across with a third of the bytes, in the accumulation dtype.
TEST(Hybrid, GathersInsideAndReducesInBothDirections) {
  const Layout layout = layout_on(kTwoByThree, Dtype::bf16);
  const std::int64_t length = layout.units()[0].length();
  const auto bytes = [&](std::int64_t ranks, std::int64_t size) { return std::to_string(length / ranks * size); };
  EXPECT_EQ(text_of(of(Plan::hybrid().bf16(), layout)),
            "use parameter all_gather/shard/" + bytes(3, 2) + ", gradient gradient reduce_scatter/shard/" +
                bytes(3, 2) + "/" + bytes(3, 4) + " reduce_scatter/replica/" + bytes(6, 4) +
                "+sum gradient all_gather/replica/" + bytes(6, 2));
}

TEST(Hybrid, ShardsTheOptimizerOverAllAndPublishesAcross) {
  const Layout layout = layout_on(kTwoByThree);
  const UnitLayout& unit = layout.units()[0];
  const std::vector<Transition> listed = of(Plan::hybrid_zero2(), layout);
  ASSERT_EQ(listed.size(), 3U);
  EXPECT_EQ(text_of({listed[2]}), "update parameter all_gather/replica/" + std::to_string(unit.length() / 6 * 4));
}

TEST(Hybrid, IsAStageWhereAnAxisHasOneRank) {
  const Layout flat = layout_on(4), replicas = layout_on(MeshShape(4, {.shard = 1}));
  EXPECT_EQ(of(Plan::hybrid(), flat), of(Plan::zero3(), flat));
  EXPECT_EQ(of(Plan::hybrid_zero2(), flat), of(Plan::zero3(), flat));
  EXPECT_EQ(of(Plan::hybrid(), replicas), of(Plan::ddp(), replicas));
  EXPECT_EQ(of(Plan::hybrid_zero2(), replicas), of(Plan::zero2(), replicas));
}

// In the order of slices, which is not that of ranks.
TEST(Tables, AreGatheredAcrossFirst) {
  const Route all = table_route(kTwoByThree, Axis::data, 5, 4), group = table_route(kTwoByThree, Axis::shard, 5, 4);
  EXPECT_EQ(all.from, (Slice{15, 5}));
  EXPECT_EQ(all.to, (Slice{0, 30}));
  ASSERT_EQ(all.hops.size(), 2U);
  EXPECT_EQ(all.hops[0], (Hop{Collective::all_gather, Axis::replica, {15, 5}, {10, 10}, Dtype::i64}));
  EXPECT_EQ(group.from, (Slice{5, 5}));
  EXPECT_EQ(group.to, (Slice{0, 15}));
  EXPECT_EQ(group.hops.size(), 1U);
  EXPECT_TRUE(table_route(1, Axis::data, 5, 0).hops.empty());
}

TEST(Shard, IsASliceOfWhatIsSharded) {
  const Layout layout = layout_on(4);
  const UnitLayout& unit = layout.units()[0];
  const Plan zero1 = Plan::zero1(), zero2 = Plan::zero2();
  const Shard all = Routes(zero2, 3).rest(State::parameter, unit);
  EXPECT_EQ(all.begin, 0);
  EXPECT_EQ(all.count, unit.length());
  EXPECT_FALSE(all.over);
  const Shard own = Routes(zero2, 3).rest(State::optimizer, unit);
  EXPECT_EQ(own.begin, 3 * unit.shard_length());
  EXPECT_EQ(own.count, unit.shard_length());
  EXPECT_EQ(own.over, Axis::data);
  EXPECT_EQ(Routes(zero1, 3).between(State::gradient, unit).count, unit.length());
  EXPECT_EQ(Routes(zero1, 3).rest(State::gradient, unit).count, unit.shard_length());
}

// Ranks 0 to 2 are the first replica.
TEST(Shard, IsCutInsideFirstThenAcross) {
  const Layout layout = layout_on(kTwoByThree);
  const UnitLayout& unit = layout.units()[0];
  const std::int64_t sixth = unit.length() / 6;
  for (const auto& [rank, slice] : {std::pair{0, 0}, {1, 2}, {2, 4}, {3, 1}, {4, 3}, {5, 5}}) {
    EXPECT_EQ(unit.slice(Axis::data, rank), (Slice{slice * sixth, sixth})) << rank;
    EXPECT_EQ(unit.slice(Axis::shard, rank), (Slice{slice / 2 * 2 * sixth, 2 * sixth})) << rank;
    EXPECT_EQ(layout.mesh().owner_of(slice), rank);
  }
  const Plan hybrid = Plan::hybrid(), zero2 = Plan::hybrid_zero2();
  EXPECT_EQ(Routes(hybrid, 4).rest(State::optimizer, unit).count, 2 * sixth);
  EXPECT_EQ(Routes(zero2, 4).rest(State::optimizer, unit).count, sixth);
}

}  // namespace zero::routes_test
