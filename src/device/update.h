// One pass over a range of a shard: scales the gradient, decays, updates moments and main weights, and
// writes the narrower parameter. Elementwise, so that any partition gives the same bits. No torch.
#pragma once

#include <array>
#include <cstdint>

#include "zero/dtype.h"
#include "zero/optimizer.h"
#include "zero/plan.h"

namespace zero {

// `count` elements. main is of type accumulation(dtype), the gradient too, or of `dtype`; moments, as many as the
// optimizer has, of the former, or bf16 or codes if it says so. `parameter` is of type `dtype`. Arrays do not overlap.
struct UpdateRange {
  void* main = nullptr;  // null without main weights: see Remainder
  const void* gradient = nullptr;
  bool narrow_gradient = false;  // of type `dtype`, not accumulation(dtype)
  std::array<void*, kMaxMoments> moments{};
  void* parameter = nullptr;  // null where the main weights are the parameters themselves
  void* rest = nullptr;       // of type `dtype`, for Remainder::kept
  Dtype dtype = Dtype::f32;
  std::int64_t count = 0;
  Remainder remainder = Remainder::main_weights;
  std::int64_t first = 0;  // index of the first element in its parameter, by which random bits are drawn
  std::array<float*, kMaxMoments> scales{};  // of the blocks of codes
  std::int64_t in_block = 0;                 // elements of the first block that lie before the range

  Dtype gradient_dtype() const { return narrow_gradient ? dtype : accumulation(dtype); }
};

struct UpdateFactors {
  double scale = 1;        // on the gradient: mean, clipping, loss scale
  double lr = 0;           // instead of the optimizer's
  std::int64_t step = 1;   // of this parameter, counting this update
  std::uint64_t seed = 0;  // of this parameter and step, for stochastic rounding
};

// For optimizers that go element by element.
void update(const Optimizer& optimizer, const UpdateFactors& factors, const UpdateRange& range);

// For the others (see partition/full_tensor_owners.h). Into `weights`, of type accumulation(dtype): the weights.
void read_weights(const UpdateRange& range, void* weights);
// Updates the moments, and writes to `input` what the step is computed from: bf16, or of type accumulation(dtype).
// `weights` as read; null where the optimizer has an owner.
void update_moments(const Optimizer& optimizer, const UpdateFactors& factors, const UpdateRange& range,
                    const void* weights, void* input, Dtype input_dtype);
// `kept` of a weight, less `size` times the step, of type accumulation(dtype).
void apply_step(double kept, double size, const void* step, const UpdateFactors& factors, const UpdateRange& range);

// `count` elements of the range from `begin` on. For moments of type accumulation(dtype).
UpdateRange part_of(const UpdateRange& range, std::int64_t begin, std::int64_t count);

}  // namespace zero
