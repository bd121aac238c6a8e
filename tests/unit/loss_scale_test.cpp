// The loss scale over sequences of overflows.
#include "zero/loss_scale.h"

#include <gtest/gtest.h>

#include "zero/error.h"

namespace zero::test::loss_scale_test {

std::vector<double> scales_after(const LossScale& policy, const std::vector<bool>& overflows) {
  LossScaler scaler(policy);
  std::vector<double> values;
  for (const bool overflow : overflows) {
    scaler.update(overflow);
    values.push_back(scaler.value());
  }
  return values;
}

TEST(LossScale, NoOverflowDoublesEachWindow) {
  const LossScale policy{.initial = 256, .window = 2};
  EXPECT_EQ(scales_after(policy, std::vector<bool>(6, false)), (std::vector<double>{256, 512, 512, 1024, 1024, 2048}));
}

TEST(LossScale, AllOverflowHalvesToTheFloor) {
  const LossScale policy{.initial = 256};
  EXPECT_EQ(scales_after(policy, std::vector<bool>(8, true)), (std::vector<double>{128, 64, 32, 16, 8, 4, 2, 1}));
}

TEST(LossScale, SomeOverflowStartsTheWindowAnew) {
  const LossScale policy{.initial = 256, .window = 2};
  EXPECT_EQ(scales_after(policy, {true, true, false, false, false, true, false, false}),
            (std::vector<double>{128, 64, 64, 128, 128, 64, 64, 128}));
}

TEST(LossScale, HysteresisSwallowsTheFirstOverflows) {
  const LossScale policy{.initial = 256, .window = 2, .hysteresis = 3};
  EXPECT_EQ(scales_after(policy, {true, true, true, true, false, false, true, true, true}),
            (std::vector<double>{256, 256, 128, 64, 64, 128, 128, 128, 64}));
}

TEST(LossScale, AnOverflowAtTheFloorIsAnError) {
  LossScaler scaler({.initial = 2, .floor = 1});
  scaler.update(true);
  EXPECT_EQ(scaler.value(), 1);
  EXPECT_THROW(scaler.update(true), StateError);
}

TEST(LossScale, AFixedOneStays) {
  EXPECT_EQ(scales_after(LossScale::fixed(1024), {true, false, true, true}), std::vector<double>(4, 1024));
}

TEST(LossScale, StopsGrowingWhereItWouldOverflowItself) {
  LossScaler scaler({.initial = 0x1p126, .window = 1});
  for (int i = 0; i < 4; ++i) scaler.update(false);
  EXPECT_EQ(scaler.value(), 0x1p127);
}

TEST(LossScale, TellsEveryFault) {
  EXPECT_TRUE(faults(LossScale{}).empty());
  EXPECT_EQ(
      faults(LossScale{.initial = 3, .growth = 0.5, .window = 0, .backoff = 2, .hysteresis = 0, .floor = -1}).size(),
      6U);
  EXPECT_EQ(faults(LossScale{.initial = 1, .floor = 2}).size(), 1U);
  for (const double scale : {0.0, 3.0, 0x1p200, 0x1p-200})
    EXPECT_THROW(LossScaler(LossScale::fixed(scale)), ConfigError);
}

}  // namespace zero::test::loss_scale_test
