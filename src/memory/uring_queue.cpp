#include <liburing.h>
#include <sched.h>
#include <sys/uio.h>

#include <cerrno>
#include <cstring>
#include <mutex>

#include "memory/disk_queue.h"
#include "zero/error.h"

namespace zero {
namespace {

class UringQueue final : public DiskQueue {
 public:
  UringQueue(DiskSystem& system, std::span<char> buffers) : system_(system), buffers_(buffers) {}
  ~UringQueue() override {
    if (made_) io_uring_queue_exit(&ring_);
  }
  UringQueue(const UringQueue&) = delete;
  UringQueue& operator=(const UringQueue&) = delete;

  // 0, or -errno. Kernels before 5.19 interrupt who waits, which waits anyhow. Where the kernel locks no more memory,
  // it is not told of the buffers.
  int init(int most) {
    const auto entries = static_cast<unsigned>(most) + 1;
    int result = io_uring_queue_init(entries, &ring_, IORING_SETUP_CLAMP | IORING_SETUP_COOP_TASKRUN);
    if (result == -EINVAL) result = io_uring_queue_init(entries, &ring_, IORING_SETUP_CLAMP);
    made_ = result == 0;
    const iovec memory{buffers_.data(), buffers_.size()};
    registered_ = made_ && !buffers_.empty() && io_uring_register_buffers(&ring_, &memory, 1) == 0;
    return result;
  }

  std::string_view name() const override { return "io_uring"; }
  void submit(DiskTransfer& transfer) override { give(&transfer); }
  void wake() override { give(nullptr); }

  DiskTransfer* wait() override {
    for (;;) {
      io_uring_cqe* completed = nullptr;
      const int failed = io_uring_wait_cqe(&ring_, &completed);
      if (failed == -EINTR || failed == -EAGAIN) continue;
      if (failed < 0) fail(failed);
      auto* const transfer = static_cast<DiskTransfer*>(io_uring_cqe_get_data(completed));
      const std::int64_t result = completed->res;
      io_uring_cqe_seen(&ring_, completed);
      if (transfer == nullptr || transfer->advance(system_.result(*transfer, result))) return transfer;
      give(transfer);
    }
  }

 private:
  [[noreturn]] static void fail(int result) { throw Error(std::string("io_uring failed: ") + std::strerror(-result)); }

  // The thread that waits needs no lock: it is at the ring's other end.
  void give(DiskTransfer* transfer) {
    const std::lock_guard lock(mutex_);
    io_uring_sqe* const entry = io_uring_get_sqe(&ring_);
    if (entry == nullptr) fail(-EBUSY);
    prepare(*entry, transfer);
    constexpr int most_tries = 10'000;
    for (int tries = 0;; ++tries) {
      const int result = io_uring_submit(&ring_);
      if (result >= 0) return;
      const bool passes = result == -EINTR || result == -EAGAIN || result == -EBUSY;
      if (!passes || tries == most_tries) fail(result);
      ::sched_yield();
    }
  }
  void prepare(io_uring_sqe& entry, DiskTransfer* transfer) const {
    if (transfer == nullptr) {
      io_uring_prep_nop(&entry);
    } else {
      char* const memory = transfer->left_memory();
      const auto bytes = static_cast<unsigned>(transfer->left_bytes());
      const auto at = static_cast<std::uint64_t>(transfer->left_at());
      const bool fixed = registered_ && memory >= buffers_.data() && memory < buffers_.data() + buffers_.size();
      if (transfer->writes && fixed) io_uring_prep_write_fixed(&entry, transfer->file, memory, bytes, at, 0);
      if (transfer->writes && !fixed) io_uring_prep_write(&entry, transfer->file, memory, bytes, at);
      if (!transfer->writes && fixed) io_uring_prep_read_fixed(&entry, transfer->file, memory, bytes, at, 0);
      if (!transfer->writes && !fixed) io_uring_prep_read(&entry, transfer->file, memory, bytes, at);
    }
    io_uring_sqe_set_data(&entry, transfer);
  }

  DiskSystem& system_;
  std::span<char> buffers_;
  std::mutex mutex_;  // of submitting
  io_uring ring_{};
  bool made_ = false, registered_ = false;
};

}  // namespace

std::unique_ptr<DiskQueue> make_uring_queue(DiskSystem& system, int most, std::span<char> buffers,
                                            std::string& reason) {
  auto queue = std::make_unique<UringQueue>(system, buffers);
  const int result = queue->init(most);
  if (result == 0) return queue;
  reason = std::string("io_uring_queue_init failed: ") + std::strerror(-result);
  return nullptr;
}

}  // namespace zero
