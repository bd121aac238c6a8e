#include "memory/disk_operation.h"

namespace zero {

void DiskOperation::wait() {
  std::unique_lock lock(mutex_);
  over_.wait(lock, [this] { return left_ == 0; });
  if (error_) std::rethrow_exception(error_);
}

bool DiskOperation::done() {
  const std::lock_guard lock(mutex_);
  return left_ == 0;
}

bool DiskOperation::failed() {
  const std::lock_guard lock(mutex_);
  return error_ != nullptr;
}

void DiskOperation::piece_is_over(const std::exception_ptr& error) {
  const std::lock_guard lock(mutex_);
  if (!error_) error_ = error;
  if (--left_ == 0) over_.notify_all();
}

}  // namespace zero
