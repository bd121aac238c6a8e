// Sums of squares that are added up on a device and brought to the host together. No torch.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/exact_sum.h"
#include "device/device.h"

namespace zero {

// Zeros at first.
class SquareSums {
 public:
  SquareSums(Device& device, std::size_t count)
      : device_(device), count_(count), place_(device.take(static_cast<std::size_t>(bytes()), Device::Use::passing)) {
    device_.zero(place_->data(), bytes());
  }

  void add(std::size_t which, const void* values, Dtype dtype, std::int64_t count) {
    device_.run(AddSquares{values, dtype, count, static_cast<std::int64_t*>(place_->data()) + which * kSquareLimbs});
  }
  // Waits for the device. Blocks that are not finite are left out.
  std::vector<ExactSum> read() const {
    std::vector<std::int64_t> limbs(count_ * kSquareLimbs);
    device_.to_host(limbs.data(), place_->data(), bytes());
    std::vector<ExactSum> sums(count_);
    for (std::size_t i = 0; i < count_; ++i)
      sums[i].add(std::span<const std::int64_t>(limbs).subspan(i * kSquareLimbs, ExactSum::kLimbs));
    return sums;
  }

 private:
  std::int64_t bytes() const { return static_cast<std::int64_t>(count_ * kSquareLimbs * sizeof(std::int64_t)); }

  Device& device_;
  std::size_t count_;
  std::unique_ptr<Block::Place> place_;
};

}  // namespace zero
