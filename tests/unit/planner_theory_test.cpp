#include "planner/theory.h"

#include <gtest/gtest.h>

#include "golden_table.h"

namespace planner::planner_theory_test {

using zero::Plan;

TEST(Theory, IsThatOfThePaper) {
  for (const golden::Row& row : golden::table("theory")) {
    const Plan plan = Plan::named(row.text("plan"))
                          .precision(zero::precision_named(row.text("precision")))
                          .accumulate(row.count("micro-batches"));
    const zero::MeshShape mesh(row.count("ranks"), {.shard = row.count("in a group")});
    const Theory theory = theory_of(plan.on(mesh), row.count("parameters"), mesh, row.number("kept"));
    row.expect("state", theory.state);
    row.expect("bytes", theory.state_bytes);
    row.expect("volume", theory.volume);
    row.expect("exchanged", theory.volume_bytes);
  }
}

TEST(Theory, OfOneRankSendsNothing) {
  for (const std::string_view preset : Plan::presets()) {
    const Theory theory = theory_of(Plan::named(preset).on(1), 1000, 1, 8);
    EXPECT_EQ(theory.state, "16 Ψ");
    EXPECT_EQ(theory.state_bytes, 16000);
    EXPECT_EQ(theory.volume, "0 Ψ");
    EXPECT_EQ(theory.volume_bytes, 0);
  }
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
