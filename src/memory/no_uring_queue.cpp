#include "memory/disk_queue.h"

namespace zero {

std::unique_ptr<DiskQueue> make_uring_queue(DiskSystem& /*system*/, int /*most*/, std::span<char> /*buffers*/,
                                            std::string& reason) {
  reason = "libzero was built without liburing";
  return nullptr;
}

}  // namespace zero
