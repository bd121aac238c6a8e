#include "comm/torch/nccl.h"
#include "zero/error.h"

namespace zero {

std::shared_ptr<CommunicatorImpl> nccl_communicator(c10::intrusive_ptr<c10d::Store>, int, int, const NcclOptions&) {
  throw ConfigError("this build of libzero has no NCCL", "build it against LibTorch for CUDA, or use Gloo");
}

}  // namespace zero
