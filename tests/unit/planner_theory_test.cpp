#include "planner/theory.h"

#include <gtest/gtest.h>

namespace planner::planner_theory_test {

using zero::Plan;

// With AdamW's 8 bytes of moments in fp32.
Theory of(const Plan& plan, int ranks = 4, double held = 8) {
  return theory_of(plan.on(ranks), 1000, ranks, held);
}

void expect(const Theory& theory, const char* state, std::int64_t state_bytes, const char* volume,
            std::int64_t volume_bytes) {
  EXPECT_EQ(theory.state, state);
  EXPECT_EQ(theory.state_bytes, state_bytes);
  EXPECT_EQ(theory.volume, volume);
  EXPECT_EQ(theory.volume_bytes, volume_bytes);
}

// ZeRO, figure 1 and section 7.
TEST(Theory, IsThatOfThePaper) {
  expect(of(Plan::ddp()), "16 Ψ", 16000, "2 Ψ", 6000);
  expect(of(Plan::zero1()), "8 Ψ + 8 Ψ / N", 10000, "2 Ψ", 6000);
  expect(of(Plan::zero2()), "4 Ψ + 12 Ψ / N", 7000, "2 Ψ", 6000);
  expect(of(Plan::zero3()), "16 Ψ / N", 4000, "3 Ψ", 9000);
}

TEST(Theory, OfSixteenBitsHasSixteenBytesAParameter) {
  expect(of(Plan::ddp().bf16(), 4, 12), "16 Ψ", 16000, "2 Ψ", 3000);
  expect(of(Plan::zero3().bf16(), 4, 12), "16 Ψ / N", 4000, "3 Ψ", 4500);
}

TEST(Theory, CountsMicroBatches) {
  expect(of(Plan::zero2().accumulate(4)), "4 Ψ + 12 Ψ / N", 7000, "5 Ψ", 15000);
  expect(of(Plan::zero3().accumulate(4)), "16 Ψ / N", 4000, "12 Ψ", 36000);
  expect(of(Plan::zero1().accumulate(4)), "8 Ψ + 8 Ψ / N", 10000, "2 Ψ", 6000);
}

TEST(Theory, OfOneRankSendsNothing) {
  for (const std::string_view preset : Plan::presets()) expect(of(Plan::named(preset), 1), "16 Ψ", 16000, "0 Ψ", 0);
}

// Across with a share of the bytes, in fp32: what is added up twice is rounded once.
TEST(Theory, OfGroupsIsTheSharesOfEach) {
  const zero::MeshShape mesh(8, {.shard = 4});
  const auto on = [&](const Plan& plan) { return theory_of(plan.on(mesh), 8000, mesh, 8); };
  expect(on(Plan::hybrid()), "16 Ψ / S", 32000, "3 Ψ + 2 Ψ / S", 80000);
  expect(on(Plan::hybrid_zero2()), "4 Ψ / S + 12 Ψ / N", 20000, "3 Ψ + 2 Ψ / S", 80000);
  expect(on(Plan::zero3()), "16 Ψ / N", 16000, "3 Ψ + 3 Ψ / S", 84000);
  expect(on(Plan::ddp()), "16 Ψ", 128000, "2 Ψ + 2 Ψ / S", 56000);
}

TEST(Theory, HasThreeDigits) {
  EXPECT_EQ(of(Plan::ddp(), 4, 2.12345).state, "10.1 Ψ");
  EXPECT_EQ(of(Plan::zero1(), 4, 0.0625).state, "8 Ψ + 0.0625 Ψ / N");
}

TEST(Theory, KnowsAmongHowManyAStateIsDivided) {
  EXPECT_EQ(divided_among(Plan::zero1(), zero::State::optimizer, 4), 4);
  EXPECT_EQ(divided_among(Plan::zero1(), zero::State::gradient, 4), 1);
  EXPECT_TRUE(reduces_each(Plan::zero2()));
  EXPECT_FALSE(reduces_each(Plan::zero1()));
  EXPECT_EQ(places_of(Plan::zero1(), zero::State::gradient),
            (std::pair<std::string, std::string>("partial", "sharded")));
}

}  // namespace planner::planner_theory_test
