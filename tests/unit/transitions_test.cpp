#include "partition/transitions.h"

#include <gtest/gtest.h>

namespace zero {
namespace {

// Two trainable units and a frozen one between them, of 100, 7 and 100 elements.
Layout layout_on(int ranks, Dtype dtype = Dtype::f32) {
  const std::vector<ParameterSpec> specs{
      {.name = "a", .numel = 100, .dtype = dtype, .unit = "a"},
      {.name = "frozen", .numel = 7, .dtype = dtype, .trainable = false, .unit = "frozen"},
      {.name = "b", .numel = 100, .dtype = dtype, .unit = "b"}};
  return Layout(specs, ranks);
}

std::vector<Transition> of(const Plan& plan, const Layout& layout) {
  return transitions(plan.on(layout.ranks()), layout);
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
  EXPECT_EQ(reduce(0, Moment::sum).collective(), Collective::reduce_scatter);
  EXPECT_EQ(gather(0, Moment::use).collective(), Collective::all_gather);
  EXPECT_EQ(reduce(0, Moment::sum, Dtype::bf16).bytes(unit), 2 * unit.shard_length());
  EXPECT_EQ(gather(0, Moment::use).bytes(unit), 4 * unit.shard_length());
  const std::vector<Transition> coded = of(Plan::zero3().gather_in(Wire::fp8), layout);
  EXPECT_LT(coded.front().bytes(unit), 2 * unit.shard_length());
}

TEST(Held, IsASliceOfWhatIsSharded) {
  const Layout layout = layout_on(4);
  const UnitLayout& unit = layout.units()[0];
  const Held all = held_at_rest(Plan::zero2(), State::parameter, unit, 3);
  EXPECT_EQ(all.begin, 0);
  EXPECT_EQ(all.count, unit.length());
  EXPECT_FALSE(all.slice);
  const Held own = held_at_rest(Plan::zero2(), State::optimizer, unit, 3);
  EXPECT_EQ(own.begin, 3 * unit.shard_length());
  EXPECT_EQ(own.count, unit.shard_length());
  EXPECT_TRUE(own.slice);
  EXPECT_EQ(held_between(Plan::zero1(), State::gradient, unit, 3).count, unit.length());
  EXPECT_EQ(held_at_rest(Plan::zero1(), State::gradient, unit, 3).count, unit.shard_length());
}

}  // namespace
}  // namespace zero
