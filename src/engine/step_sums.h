// What a step adds up where the engine computes, and brings to the host once: losses, squares of gradients, and the
// largest magnitudes of what is computed with in FP8.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <memory>
#include <vector>

#include "base/exact_sum.h"
#include "device/device.h"

namespace zero {

class StepSums {
 public:
  StepSums(Device& device, c10::Device where, int micro_batches, std::int64_t magnitudes);

  // Of one element, any dtype, anywhere; `micro` is taken modulo the number of micro-batches.
  void add_loss(int micro, const at::Tensor& loss);
  // Of memory of `where`, which is the device or the host: see Device::add_squares.
  void add_squares(Device& where, const void* values, Dtype dtype, std::int64_t count);

  // As many magnitudes, zero when a step begins; who has them may outlive this.
  std::shared_ptr<float> magnitudes() const;

  struct Values {
    ExactSum squares = {};
    std::int64_t nonfinite = 0;       // blocks of squares
    std::vector<double> losses = {};  // by micro-batch
    std::vector<double> magnitudes = {};
  };
  // Waits for the device.
  Values read() const;
  void clear_squares();
  void clear();

 private:
  std::int64_t words() const { return kSquareLimbs + micro_batches_ + (magnitudes_ + 1) / 2; }
  std::int64_t bytes() const { return words() * std::int64_t{sizeof(std::int64_t)}; }
  std::int64_t* limbs() const { return static_cast<std::int64_t*>(place_->data()); }

  Device& device_;
  int micro_batches_;
  std::int64_t magnitudes_;
  std::array<std::int64_t, kSquareLimbs> of_host_{};
  std::shared_ptr<Block::Place> place_;  // the limbs, then the losses, then the magnitudes
  at::Tensor losses_;
};

}  // namespace zero
