#include "zero/schedule.h"

#include <gtest/gtest.h>

#include <cmath>

#include "zero/error.h"

namespace zero::test::schedule_test {

TEST(Schedule, AllRiseLinearlyFirst) {
  for (const Schedule& schedule : {constant_schedule(4), cosine_schedule({4, 20}), linear_schedule({4, 20}),
                                   inverse_root_schedule(4), stable_decay_schedule({4, 20}, 8)})
    for (int step = 0; step < 4; ++step) EXPECT_EQ(schedule(step), (step + 1) / 4.0);
}

TEST(Schedule, ConstantStays) {
  EXPECT_EQ(constant_schedule()(0), 1);
  EXPECT_EQ(constant_schedule(3)(1000000), 1);
}

TEST(Schedule, CosineFallsToItsFloorAndStays) {
  const Schedule schedule = cosine_schedule({2, 13}, 0.2);
  EXPECT_EQ(schedule(2), 1);
  EXPECT_DOUBLE_EQ(schedule(7), 0.6);
  EXPECT_DOUBLE_EQ(schedule(12), 0.2);
  EXPECT_DOUBLE_EQ(schedule(100), 0.2);
}

TEST(Schedule, LinearFallsByTheSameEveryStep) {
  const Schedule schedule = linear_schedule({1, 12});
  for (int step = 1; step < 12; ++step) EXPECT_NEAR(schedule(step), 1 - (step - 1) / 10.0, 1e-15);
  EXPECT_EQ(schedule(50), 0);
}

TEST(Schedule, InverseRootGoesOnWhereTheWarmUpEnds) {
  const Schedule schedule = inverse_root_schedule(4);
  EXPECT_DOUBLE_EQ(schedule(15), 0.5);
  EXPECT_DOUBLE_EQ(schedule(399), 0.1);
  EXPECT_DOUBLE_EQ(inverse_root_schedule(0)(3), 0.5);
}

TEST(Schedule, StableDecayFallsOverItsLastSteps) {
  const Schedule schedule = stable_decay_schedule({2, 20}, 10, 0.5);
  EXPECT_EQ(schedule(2), 1);
  EXPECT_EQ(schedule(9), 1);
  EXPECT_DOUBLE_EQ(schedule(14), 0.75);
  EXPECT_DOUBLE_EQ(schedule(19), 0.5);
  EXPECT_DOUBLE_EQ(schedule(1000), 0.5);
}

TEST(Schedule, ShortTrainingsAreAllWarmUp) {
  for (const Schedule& schedule : {cosine_schedule({5, 3}), linear_schedule({5, 3}), stable_decay_schedule({5, 3}, 2)})
    EXPECT_EQ(schedule(2), 0.6);
  EXPECT_EQ(stable_decay_schedule({10, 10}, 2)(50), 1);
  EXPECT_EQ(cosine_schedule({0, 1})(0), 1);
  EXPECT_EQ(linear_schedule({0, 1})(0), 1);
}

TEST(Schedule, RefusesWhatMakesNoSense) {
  EXPECT_THROW(constant_schedule(-1), ConfigError);
  EXPECT_THROW(cosine_schedule({0, -1}), ConfigError);
  EXPECT_THROW(linear_schedule({0, 10}, 1.5), ConfigError);
  EXPECT_THROW(stable_decay_schedule({0, 10}, -2), ConfigError);
  EXPECT_THROW(cosine_schedule({0, 10}, std::nan("")), ConfigError);
}

}  // namespace zero::test::schedule_test
