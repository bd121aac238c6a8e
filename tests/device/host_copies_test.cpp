// Copies between a device and the host's memory, beside what is computed.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <optional>

#include "device/engines.h"
#include "device/torch/devices.h"

namespace zero::test::host_copies_test {

// Behind what was queued, and before what follows them.
class CopiesOfADevice : public ModelsOnDevices {
 protected:
  static constexpr std::int64_t kCount = 64, kBytes = kCount * 4;

  // Whether a run with the site's waits left out, or with none, is as it should be.
  static bool good(const std::optional<accelerator::Site>& left_out, const std::function<bool(Device&)>& run) {
    accelerator::reset();
    accelerator::set_race_faults(true);
    accelerator::count_faults();
    if (left_out) accelerator::leave_out(*left_out);
    const bool right = run(device_at(accelerator::device(0)));
    accelerator::synchronize(0);
    return right && accelerator::counted_faults() == 0;
  }
};

TEST_F(CopiesOfADevice, ComeBehindWhatWasQueuedAndAreWaitedFor) {
  const auto brought = [](Device& device) {
    const at::Tensor x = at::full({kCount}, 3.0, accelerator::device(0));
    const auto host = device.take_of_host(kBytes);
    std::fill_n(static_cast<float*>(host->data()), kCount, 0.0F);
    Pending copy = device.bring(host->data(), x.const_data_ptr(), kBytes);
    copy.wait();
    const float* const values = static_cast<const float*>(host->data());
    const bool right = std::all_of(values, values + kCount, [](float value) { return value == 3; });
    accelerator::synchronize(0);
    return right && copy.done();
  };
  EXPECT_TRUE(good({}, brought));
  EXPECT_FALSE(good(accelerator::Site::copy, brought));
  EXPECT_FALSE(good(accelerator::Site::finish, brought));
}

TEST_F(CopiesOfADevice, AreFollowedByWhatReadsThem) {
  for (const bool all : {false, true}) {
    const auto sent = [all](Device& device) {
      at::Tensor x = at::zeros({kCount}, accelerator::device(0));
      const auto host = device.take_of_host(kBytes);
      std::fill_n(static_cast<float*>(host->data()), kCount, 3.0F);
      Pending copy = device.send(x.mutable_data_ptr(), host->data(), kBytes);
      if (all) {
        device.follow_sends();
      } else {
        device.follow(copy);
      }
      const at::Tensor twice = (x * 2).cpu();
      const bool right = twice.eq(6).all().item<bool>();
      accelerator::synchronize(0);
      return right;
    };
    EXPECT_TRUE(good({}, sent));
    EXPECT_FALSE(good(accelerator::Site::copy, sent));
    EXPECT_FALSE(good(accelerator::Site::copied, sent));
  }
}

}  // namespace zero::test::host_copies_test
