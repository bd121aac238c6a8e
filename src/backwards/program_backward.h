// loss.backward(), as the program calls it: the micro-batch of every engine whose parameters it reaches. See also
// zero/backward.h.
#pragma once

#include <ATen/core/Tensor.h>

namespace zero::program_backward {

// From now on this is heard, on threads on which engines hear of backwards.
void watch();

// A loss that was multiplied by `scale`: what a backward of it brings has that loss scale. On this thread.
void note_scaled(const at::Tensor& loss, double scale);

}  // namespace zero::program_backward
