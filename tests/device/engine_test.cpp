// Engines on the simulated accelerator: the bits of the CPU, under every plan, however late the device works.
#include <gtest/gtest.h>

#include "device/simulated_device.h"
#include "ranks/lm.h"

namespace zero::test {
namespace {

// The model on a device, and what it is given and gives.
Course<Lm> lm_on(const at::Device& device, double dropout) {
  return {.make = [device, dropout] {
    auto model = std::make_shared<Lm>(dropout);
    model->to(device);
    return model;
  }};
}

using Setting = std::tuple<Precision, int>;
class EnginesOnADevice : public testing::TestWithParam<Setting> {
 protected:
  void SetUp() override {
    accelerator::reset();
    install_simulated_device();
  }
  void TearDown() override { EXPECT_NO_THROW(accelerator::reset()); }
};

TEST_P(EnginesOnADevice, HaveTheBitsOfTheCpu) {
  const auto [precision, accumulate] = GetParam();
  for (const double dropout : {0.0, 0.2}) {
    Job job{.plan = Plan::ddp().precision(precision).accumulate(accumulate), .ranks = 1};
    under_every_plan(job, [&](const Job& each) {
      const Outcome expected = train<Lm>(each, lm_on(at::kCPU, dropout));
      const Outcome run = train<Lm>(each, lm_on(accelerator::device(1), dropout));
      EXPECT_EQ(difference(expected, run), "") << "dropout " << dropout;
    });
  }
}

INSTANTIATE_TEST_SUITE_P(All, EnginesOnADevice,
                         testing::Combine(testing::Values(Precision::fp32, Precision::bf16, Precision::fp16,
                                                          Precision::bf16_pure, Precision::bf16_kahan),
                                          testing::Values(1, 3)),
                         [](const auto& tested) {
                           return in_title(1, std::get<1>(tested.param), std::get<0>(tested.param));
                         });

}  // namespace
}  // namespace zero::test
