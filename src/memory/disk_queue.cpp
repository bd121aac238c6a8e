#include "memory/disk_queue.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "zero/error.h"

namespace zero {

// What goes past the page cache goes in whole pages: a part of one is repeated.
bool DiskTransfer::advance(std::int64_t result) {
  constexpr int most_stalls = 1000;
  const bool interrupted = result == -EINTR || result == -EAGAIN;
  if (result < 0 && !interrupted) error = static_cast<int>(-result);
  if (result == 0 && !writes) error = ENODATA;
  if (error != 0) return true;
  const std::int64_t before = done_;
  if (result >= left_bytes())
    done_ = bytes;
  else if (result > 0)
    done_ += result / kDiskPage * kDiskPage;
  stalls_ = done_ > before ? 0 : stalls_ + 1;
  if (stalls_ == most_stalls) error = interrupted ? static_cast<int>(-result) : EIO;
  return error != 0 || done_ == bytes;
}

DiskFault disk_fault(const std::string& whose, const DiskTransfer& transfer, const DiskFile& file) {
  const std::string what =
      whose + ": cannot " + (transfer.writes ? "write " : "read ") + file.bytes_at(transfer.at, transfer.bytes) + ": ";
  const bool full = transfer.error == ENOSPC || transfer.error == EDQUOT;
  return {what + (transfer.error == ENODATA ? "it ends before" : std::strerror(transfer.error)),
          full ? "free space there: a file system that copies what is written needs more than was reserved"
               : "the disk, its driver or its file system failed: the kernel's log says more"};
}

std::unique_ptr<DiskQueue> make_disk_queue(DiskQueueKind kind, DiskSystem& system, int most, std::span<char> buffers) {
  if (kind != DiskQueueKind::threads) {
    std::string reason;
    if (auto queue = make_uring_queue(system, most, buffers, reason)) return queue;
    if (kind == DiskQueueKind::io_uring)
      throw ConfigError("there is no io_uring: " + reason, "leave the choice to the library, or take threads");
  }
  return make_thread_queue(system, most);
}

}  // namespace zero
