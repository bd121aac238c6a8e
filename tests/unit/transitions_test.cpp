#include "partition/transitions.h"

#include <gtest/gtest.h>

namespace zero::transitions_test {

// Two trainable units and a frozen one between them, of 100, 7 and 100 elements.
Layout layout_on(const MeshShape& mesh, Dtype dtype = Dtype::f32) {
  const std::vector<ParameterSpec> specs{
      {.name = "a", .numel = 100, .dtype = dtype, .unit = "a"},
      {.name = "frozen", .numel = 7, .dtype = dtype, .trainable = false, .unit = "frozen"},
      {.name = "b", .numel = 100, .dtype = dtype, .unit = "b"}};
  return Layout(specs, mesh);
}

std::vector<Transition> of(const Plan& plan, const Layout& layout) {
  return transitions(plan.on(layout.mesh()), layout);
}

Transition gather(int unit, Moment when, Dtype dtype = Dtype::f32) {
  return {when, unit, State::parameter, {Placement::sharded, dtype}, {Placement::replicated, dtype}};
}

Transition reduce(int unit, Moment when, Dtype travels = Dtype::f32, Dtype held = Dtype::f32) {
  return {when, unit, State::gradient, {Placement::partial, travels}, {Placement::sharded, held}};
}

Transition gather_sum(int unit, Dtype dtype = Dtype::f32) {
  return {Moment::sum,  unit, State::gradient, {Placement::sharded, dtype}, {Placement::replicated, dtype},
          Wire::native, true};
}

TEST(Transitions, OfTheStagesAreThoseOfThePaper) {
  const Layout layout = layout_on(4);
  EXPECT_EQ(of(Plan::ddp(), layout),
            (std::vector<Transition>{reduce(0, Moment::sum), gather_sum(0), reduce(2, Moment::sum), gather_sum(2)}));
  EXPECT_EQ(of(Plan::zero1(), layout), (std::vector<Transition>{reduce(0, Moment::sum), reduce(2, Moment::sum),
                                                                gather(0, Moment::update), gather(2, Moment::update)}));
  EXPECT_EQ(of(Plan::zero2(), layout),
            (std::vector<Transition>{reduce(0, Moment::gradient), reduce(2, Moment::gradient),
                                     gather(0, Moment::update), gather(2, Moment::update)}));
  EXPECT_EQ(of(Plan::zero3(), layout),
            (std::vector<Transition>{gather(0, Moment::use), gather(1, Moment::use), gather(2, Moment::use),
                                     reduce(0, Moment::gradient), reduce(2, Moment::gradient)}));
}

TEST(Transitions, AreNoneOnOneRank) {
  for (const std::string_view preset : Plan::presets())
    EXPECT_TRUE(of(Plan::named(preset), layout_on(1)).empty()) << preset;
}

// What is on disk is read for its use, and gathered where it is a slice.
TEST(Transitions, ComeFromTheTierOfTheParameters) {
  const auto use = [](int unit, Placement there) {
    return Transition{Moment::use, unit, State::parameter, {there, Dtype::f32, Tier::disk}, {Placement::replicated}};
  };
  const Layout one = layout_on(1), four = layout_on(4);
  const auto on_disk = [](const Plan& plan) { return plan.offload(State::parameter, Tier::disk); };
  for (const std::string_view preset : Plan::presets())
    EXPECT_EQ(of(on_disk(Plan::named(preset)), one),
              (std::vector<Transition>{use(0, Placement::replicated), use(1, Placement::replicated),
                                       use(2, Placement::replicated)}))
        << preset;
  const std::vector<Transition> gathered = of(on_disk(Plan::zero3()), four);
  EXPECT_EQ(gathered.size(), of(Plan::zero3(), four).size());
  EXPECT_EQ(gathered.front(), use(0, Placement::sharded));
  EXPECT_EQ(gathered.front().hops(four.units()[0]), gather(0, Moment::use).hops(four.units()[0]));
  const std::vector<Transition> whole = of(on_disk(Plan::ddp()), four);
  EXPECT_EQ(whole.front(), use(0, Placement::replicated));
  EXPECT_TRUE(whole.front().hops(four.units()[0]).empty());
}

TEST(Transitions, HaveTheDtypesOfThePlan) {
  const Layout layout = layout_on(2, Dtype::bf16);
  const std::vector<Transition> once = of(Plan::zero2().bf16(), layout);
  EXPECT_EQ(once.front(), reduce(0, Moment::gradient, Dtype::bf16, Dtype::bf16));
  const std::vector<Transition> several = of(Plan::zero1().bf16().accumulate(2).reduce_in(Dtype::bf16), layout);
  EXPECT_EQ(several.front(), reduce(0, Moment::sum, Dtype::bf16, Dtype::f32));
  EXPECT_EQ(several.back(), gather(2, Moment::update, Dtype::bf16));
}

TEST(Transitions, SendASliceToEachOtherRank) {
  const Layout layout = layout_on(4);
  const UnitLayout& unit = layout.units()[0];
  const std::int64_t slice = unit.shard_length();
  const auto hop = [](Collective collective, std::int64_t bytes) {
    return std::vector<Hop>{{collective, Axis::shard, bytes}};
  };
  EXPECT_EQ(reduce(0, Moment::sum).hops(unit), hop(Collective::reduce_scatter, 4 * slice));
  EXPECT_EQ(reduce(0, Moment::sum, Dtype::bf16).hops(unit),
            (std::vector<Hop>{{Collective::reduce_scatter, Axis::shard, 2 * slice, 4 * slice}}));
  EXPECT_EQ(gather(0, Moment::use).hops(unit), hop(Collective::all_gather, 4 * unit.shard_length()));
  const std::vector<Transition> coded = of(Plan::zero3().gather_in(Wire::fp8), layout);
  EXPECT_LT(coded.front().hops(unit).front().bytes, 2 * unit.shard_length());
}

const MeshShape kTwoByThree(6, {.shard = 3});  // 2 replicas of 3 ranks

std::vector<Transition> of_unit(int unit, const Plan& plan, const Layout& layout) {
  std::vector<Transition> found;
  for (const Transition& each : of(plan, layout))
    if (each.unit == unit) found.push_back(each);
  return found;
}

// Inside first, then across with a third of the bytes, in the accumulation dtype.
TEST(Hybrid, GathersInsideAndReducesInBothDirections) {
  const Layout layout = layout_on(kTwoByThree, Dtype::bf16);
  const std::int64_t length = layout.units()[0].length();
  const std::vector<Transition> listed = of_unit(0, Plan::hybrid().bf16(), layout);
  ASSERT_EQ(listed.size(), 3U);
  EXPECT_EQ(listed[0].hops(layout.units()[0]),
            (std::vector<Hop>{{Collective::all_gather, Axis::shard, length / 3 * 2}}));
  EXPECT_EQ(listed[1].when, Moment::gradient);
  EXPECT_EQ(listed[1].hops(layout.units()[0]),
            (std::vector<Hop>{{Collective::reduce_scatter, Axis::shard, length / 3 * 2, length / 3 * 4},
                              {Collective::reduce_scatter, Axis::replica, length / 6 * 4}}));
  EXPECT_EQ(listed[2].when, Moment::sum);
  EXPECT_TRUE(listed[2].joined);
  EXPECT_EQ(listed[2].hops(layout.units()[0]),
            (std::vector<Hop>{{Collective::all_gather, Axis::replica, length / 6 * 2}}));
}

TEST(Hybrid, ShardsTheOptimizerOverAllAndPublishesAcross) {
  const Layout layout = layout_on(kTwoByThree);
  const UnitLayout& unit = layout.units()[0];
  const std::vector<Transition> listed = of_unit(0, Plan::hybrid_zero2(), layout);
  ASSERT_EQ(listed.size(), 3U);
  EXPECT_EQ(listed[2].when, Moment::update);
  EXPECT_EQ(listed[2].state, State::parameter);
  EXPECT_EQ(listed[2].hops(unit), (std::vector<Hop>{{Collective::all_gather, Axis::replica, unit.length() / 6 * 4}}));
}

TEST(Hybrid, GathersAcrossFirstWhatIsShardedOverAll) {
  const Layout layout = layout_on(kTwoByThree);
  const UnitLayout& unit = layout.units()[0];
  EXPECT_EQ(of(Plan::zero3(), layout).front().hops(unit),
            (std::vector<Hop>{{Collective::all_gather, Axis::replica, unit.length() / 6 * 4},
                              {Collective::all_gather, Axis::shard, unit.length() / 3 * 4}}));
}

TEST(Hybrid, IsAStageWhereAnAxisHasOneRank) {
  const Layout flat = layout_on(4), replicas = layout_on(MeshShape(4, {.shard = 1}));
  EXPECT_EQ(of(Plan::hybrid(), flat), of(Plan::zero3(), flat));
  EXPECT_EQ(of(Plan::hybrid_zero2(), flat), of(Plan::zero3(), flat));
  EXPECT_EQ(of(Plan::hybrid(), replicas), of(Plan::ddp(), replicas));
  EXPECT_EQ(of(Plan::hybrid_zero2(), replicas), of(Plan::zero2(), replicas));
}

TEST(Held, IsASliceOfWhatIsSharded) {
  const Layout layout = layout_on(4);
  const UnitLayout& unit = layout.units()[0];
  const Held all = held_at_rest(Plan::zero2(), State::parameter, unit, 3);
  EXPECT_EQ(all.begin, 0);
  EXPECT_EQ(all.count, unit.length());
  EXPECT_FALSE(all.over);
  const Held own = held_at_rest(Plan::zero2(), State::optimizer, unit, 3);
  EXPECT_EQ(own.begin, 3 * unit.shard_length());
  EXPECT_EQ(own.count, unit.shard_length());
  EXPECT_EQ(own.over, Axis::data);
  EXPECT_EQ(held_between(Plan::zero1(), State::gradient, unit, 3).count, unit.length());
  EXPECT_EQ(held_at_rest(Plan::zero1(), State::gradient, unit, 3).count, unit.shard_length());
}

// Ranks 0 to 2 are the first replica.
TEST(Held, IsCutInsideFirstThenAcross) {
  const Layout layout = layout_on(kTwoByThree);
  const UnitLayout& unit = layout.units()[0];
  const std::int64_t sixth = unit.length() / 6;
  for (const auto& [rank, slice] : {std::pair{0, 0}, {1, 2}, {2, 4}, {3, 1}, {4, 3}, {5, 5}}) {
    EXPECT_EQ(unit.slice(Axis::data, rank), (Slice{slice * sixth, sixth})) << rank;
    EXPECT_EQ(unit.slice(Axis::shard, rank), (Slice{slice / 2 * 2 * sixth, 2 * sixth})) << rank;
    EXPECT_EQ(layout.mesh().owner_of(slice), rank);
  }
  EXPECT_EQ(held_at_rest(Plan::hybrid(), State::optimizer, unit, 4).count, 2 * sixth);
  EXPECT_EQ(held_at_rest(Plan::hybrid_zero2(), State::optimizer, unit, 4).count, sixth);
}

}  // namespace zero::transitions_test
