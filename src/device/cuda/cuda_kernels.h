// The kernels of CUDA devices. Without CUDA's headers, and without torch.
#pragma once

#include "device/kernels.h"

namespace zero {

// Queues it on a cudaStream_t of the current device; see device/grid_kernels.h. Returns the cudaError_t of the launch.
int cuda_run(void* stream, const OwnKernel& kernel);

// Whether the device has a unit that multiplies in FP8: from compute capability 8.9 on.
bool cuda_multiplies_float8(int device);

}  // namespace zero
