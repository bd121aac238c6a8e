// CUDA devices. In a build without CUDA there are none.
#pragma once

#include "device/torch/devices.h"

namespace zero {

// What makes the doors to them; null in a build without CUDA.
MakeDevice cuda_devices();

}  // namespace zero
