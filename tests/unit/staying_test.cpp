// Which units a share leaves on the device.
#include "partition/staying.h"

#include <gtest/gtest.h>

#include "zero/estimate.h"

namespace zero::test::staying_test {

using Counts = std::vector<std::int64_t>;

Layout of_units(const std::vector<std::int64_t>& sizes, int ranks = 1) {
  std::vector<ParameterSpec> specs;
  for (std::size_t i = 0; i < sizes.size(); ++i)
    specs.push_back({.name = std::to_string(i), .numel = sizes[i], .dtype = Dtype::bf16, .unit = std::to_string(i)});
  return {specs, ranks};
}

Counts staying_of(double share, const Layout& layout, const Optimizer& optimizer = AdamW{}, Repeats repeats = {}) {
  if (repeats.empty()) repeats.assign(layout.units().size(), 1);
  return staying(Plan::zero2().bf16().offload(State::optimizer, Tier::host, share), layout,
                 std::vector<ParameterRule>(layout.units().size(), {optimizer}), repeats);
}

TEST(Staying, AreUnitsInOrderAsFarAsTheRestOfTheShareGoes) {
  const Layout layout = of_units({1024, 20480, 2048, 2048, 6144});
  EXPECT_EQ(staying_of(1, layout), (Counts{0, 0, 0, 0, 0}));
  EXPECT_EQ(staying_of(0.9, layout), (Counts{1, 0, 1, 0, 0})) << "a tenth: each that has room";
  EXPECT_EQ(staying_of(0.83, layout), (Counts{1, 0, 1, 1, 0}));
  EXPECT_EQ(staying_of(0.3, layout), (Counts{1, 1, 0, 0, 0}));
  EXPECT_EQ(staying_of(1e-9, layout), (Counts{1, 1, 1, 1, 0})) << "a little more than the share";
}

TEST(Staying, AreNoneWhereNothingIsKeptOrNothingIsBelow) {
  const Layout layout = of_units({320, 320});
  EXPECT_EQ(staying(Plan::zero2(), layout, std::vector<ParameterRule>(2, {AdamW{}}), Repeats{1, 1}), (Counts{0, 0}));
  const Plan plain = Plan::zero2().precision(Precision::bf16_pure).offload(State::optimizer, Tier::host, 0.5);
  EXPECT_EQ(staying(plain, layout, std::vector<ParameterRule>(2, {Sgd{}}), Repeats{1, 1}), (Counts{0, 0}));
}

// As many of the units that one stands for as of these themselves.
TEST(Staying, OfRepeatedUnitsAreTheFirstOfThem) {
  for (const double share : {0.05, 0.2, 0.35, 0.5, 0.8, 0.95}) {
    const Counts each = staying_of(share, of_units({3072, 2048, 2048, 2048, 2048, 2048, 1024}));
    const Counts joined = staying_of(share, of_units({3072, 2048, 1024}), AdamW{}, {1, 5, 1});
    EXPECT_EQ(joined, (Counts{each[0], each[1] + each[2] + each[3] + each[4] + each[5], each[6]})) << share;
  }
}

TEST(Staying, IsBesideWhatIsBelow) {
  for (const int ranks : {1, 2, 4})
    for (const double share : {0.1, 0.5, 0.9}) {
      const Layout layout = of_units({2048, 4096, 1024, 2048}, ranks);
      const Plan all = Plan::zero2().bf16().offload(State::gradient, Tier::disk).offload(State::optimizer, Tier::host);
      const Estimate whole = estimate(all, layout, AdamW{});
      const Estimate divided = estimate(all.offload(State::optimizer, Tier::host, share), layout, AdamW{});
      EXPECT_EQ(divided.state, whole.state);
      const StateBytes here = divided.on(Tier::device), below = divided.on(Tier::host), disk = divided.on(Tier::disk);
      EXPECT_EQ(here.optimizer + below.optimizer, whole.on(Tier::host).optimizer);
      EXPECT_GE(static_cast<double>(below.optimizer), share * static_cast<double>(whole.state.optimizer));
      EXPECT_EQ(here.gradient + disk.gradient, whole.on(Tier::disk).gradient);
      EXPECT_EQ(here.gradient * 6, here.optimizer) << "2 bytes beside 12";
      EXPECT_EQ(divided.update_traffic, whole.update_traffic);
      EXPECT_EQ(divided.update_staying * whole.state.optimizer, whole.update_traffic * here.optimizer);
      EXPECT_EQ(whole.update_staying, 0);
      EXPECT_EQ(divided.held.on(Tier::host, Owner::update).peak, whole.held.on(Tier::host, Owner::update).peak);
      EXPECT_EQ(divided.moved.update.on(Tier::disk, State::gradient).read * 6, below.optimizer);
    }
}

}  // namespace zero::test::staying_test
