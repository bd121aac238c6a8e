// The tests of ranks on GPUs, one for each rank, joined by their collectives where LibTorch has them. A test of more
// ranks than there are GPUs fails: LibTorch runs a GPU's backward on one thread of the process.
#include <torch/cuda.h>

#include "ranks/harness.h"

namespace zero::test {
namespace {

const bool kOnGpus = [] {
  surroundings().device = [](int rank) {
    if (rank >= static_cast<int>(torch::cuda::device_count()))
      throw std::runtime_error("rank " + std::to_string(rank) + " has no GPU of its own");
    return at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(rank));
  };
  return true;
}();

}  // namespace
}  // namespace zero::test
