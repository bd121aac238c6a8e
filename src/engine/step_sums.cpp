#include "engine/step_sums.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include <cstring>
#include <span>

#include "backwards/unwatched.h"
#include "device/torch/torch_device.h"

namespace zero {

StepSums::StepSums(Device& device, c10::Device where, int micro_batches, std::int64_t magnitudes)
    : device_(device),
      micro_batches_(micro_batches),
      magnitudes_(magnitudes),
      place_(device.take(static_cast<std::size_t>(bytes()), Device::Use::lasting)) {
  const Unwatched unwatched;
  const c10::InferenceMode ordinary(false);
  losses_ = tensor_at(where, limbs() + kSquareLimbs, at::kDouble, micro_batches);
  clear();
}

void StepSums::add_loss(int micro, const at::Tensor& loss) {
  const Unwatched unwatched;
  const at::NoGradGuard no_grad;
  losses_.select(0, micro % micro_batches_).add_(loss.detach().reshape({}).to(losses_.options()));
}

void StepSums::add_squares(Device& where, const void* values, Dtype dtype, std::int64_t count) {
  where.run(AddSquares{values, dtype, count, &where == &device_ ? limbs() : of_host_.data()});
}

std::shared_ptr<float> StepSums::magnitudes() const {
  return {place_, reinterpret_cast<float*>(limbs() + kSquareLimbs + micro_batches_)};
}

StepSums::Values StepSums::read() const {
  std::vector<std::int64_t> words(static_cast<std::size_t>(this->words()));
  device_.to_host(words.data(), limbs(), bytes());
  Values values;
  values.squares.add(std::span<const std::int64_t>(words).first(ExactSum::kLimbs));
  values.squares.add(std::span<const std::int64_t>(of_host_).first(ExactSum::kLimbs));
  values.nonfinite = words[ExactSum::kLimbs] + of_host_[ExactSum::kLimbs];
  values.losses.resize(static_cast<std::size_t>(micro_batches_));
  std::memcpy(values.losses.data(), words.data() + kSquareLimbs, values.losses.size() * sizeof(double));
  std::vector<float> magnitudes(static_cast<std::size_t>(magnitudes_));
  std::memcpy(magnitudes.data(), words.data() + kSquareLimbs + micro_batches_, magnitudes.size() * sizeof(float));
  values.magnitudes.assign(magnitudes.begin(), magnitudes.end());
  return values;
}

void StepSums::clear_squares() {
  device_.zero(limbs(), kSquareLimbs * std::int64_t{sizeof(std::int64_t)});
  of_host_.fill(0);
}

void StepSums::clear() {
  device_.zero(limbs(), bytes());
  of_host_.fill(0);
}

}  // namespace zero
