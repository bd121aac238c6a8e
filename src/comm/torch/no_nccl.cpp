#include "comm/torch/nccl.h"
#include "zero/error.h"

namespace zero {

bool has_nccl() {
  return false;
}

std::uint64_t device_identity(int device) {
  return static_cast<std::uint64_t>(device);
}

std::shared_ptr<CommunicatorImpl> nccl_communicator(c10::intrusive_ptr<c10d::Store>, int, int, const NcclOptions&) {
  throw ConfigError("this build of libzero has no NCCL", "build it against LibTorch for CUDA, or use Gloo");
}

}  // namespace zero
