// One pass over a range of a shard: scales the gradient, decays, updates moments and main weights, and
// writes the narrower parameter. Elementwise, so that any partition gives the same bits. No torch.
#pragma once

#include <cstdint>

#include "zero/dtype.h"
#include "zero/optimizer.h"

namespace zero {

// `count` elements. main, gradient and moments are of type accumulation(dtype); parameter, of type
// `dtype`, is null where the main weights are the parameters themselves.
struct UpdateRange {
  void* main = nullptr;
  const void* gradient = nullptr;
  void* moments[2] = {nullptr, nullptr};
  void* parameter = nullptr;
  Dtype dtype = Dtype::f32;
  std::int64_t count = 0;
};

struct UpdateFactors {
  double scale = 1;  // on the gradient: mean and clipping
  double lr = 0;
  double weight_decay = 0;
  std::int64_t step = 1;  // of this parameter, counting this update
};

// AdamW: Loshchilov and Hutter 2019, algorithm 2, in LibTorch's form (bias corrections on the step
// size and on the root of the second moment; epsilon outside the root). Sgd: LibTorch's form.
void update(const Optimizer& optimizer, const UpdateFactors& factors, const UpdateRange& range);

}  // namespace zero
