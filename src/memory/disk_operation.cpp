#include "memory/disk_operation.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>

#include "memory/disk_files.h"

namespace zero {

// A thread that is not there in a forked process may have had the lock.
void DiskOperation::wait() {
  std::unique_lock lock(mutex_, std::defer_lock);
  if (!origin_.here() && (!lock.try_lock() || left_ > 0))
    origin_.require("what was under way on a disk cannot be waited for");
  if (!lock) lock.lock();
  over_.wait(lock, [this] { return left_ == 0; });
  if (fault_) fault_->raise();
}

bool DiskOperation::done() {
  const std::lock_guard lock(mutex_);
  return left_ == 0;
}

bool DiskOperation::failed() {
  const std::lock_guard lock(mutex_);
  return fault_.has_value();
}

void DiskOperation::piece_is_over(const std::optional<DiskFault>& fault) {
  const std::lock_guard lock(mutex_);
  if (!fault_) fault_ = fault;
  if (--left_ == 0) over_.notify_all();
}

}  // namespace zero

namespace zero {

std::uint64_t disk_check(const char* page) {
  return std::max<std::uint64_t>(XXH3_64bits(page, kDiskPage), 1);
}

std::uint64_t* disk_checks(const DiskExtent& extent, std::int64_t at) {
  return static_cast<std::uint64_t*>(extent.checks.view().data) + (at - extent.at) / kDiskPage;
}

}  // namespace zero
