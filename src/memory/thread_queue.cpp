#include <unistd.h>

#include <cerrno>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <vector>

#include "memory/disk_queue.h"

namespace zero {
namespace {

class ThreadQueue final : public DiskQueue {
 public:
  ThreadQueue(DiskSystem& system, int threads) : system_(system) {
    threads_.reserve(static_cast<std::size_t>(threads));
    try {
      for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { run(); });
    } catch (...) {
      join();
      throw;
    }
  }
  ~ThreadQueue() override { join(); }
  ThreadQueue(const ThreadQueue&) = delete;
  ThreadQueue& operator=(const ThreadQueue&) = delete;

  std::string_view name() const override { return "threads"; }

  void submit(DiskTransfer& transfer) override {
    {
      const std::lock_guard lock(mutex_);
      submitted_.push_back(&transfer);
    }
    ready_.notify_one();
  }
  DiskTransfer* wait() override {
    std::unique_lock lock(mutex_);
    over_.wait(lock, [this] { return !finished_.empty(); });
    DiskTransfer* const transfer = finished_.front();
    finished_.pop_front();
    return transfer;
  }
  void wake() override { finish(nullptr); }

 private:
  void finish(DiskTransfer* transfer) {
    const std::lock_guard lock(mutex_);
    finished_.push_back(transfer);
    over_.notify_one();
  }
  DiskTransfer* next() {
    std::unique_lock lock(mutex_);
    ready_.wait(lock, [this] { return stopping_ || !submitted_.empty(); });
    if (submitted_.empty()) return nullptr;
    DiskTransfer* const transfer = submitted_.front();
    submitted_.pop_front();
    return transfer;
  }
  void run() {
    while (DiskTransfer* const transfer = next()) {
      while (!transfer->advance(system_.result(*transfer, part(*transfer)))) continue;
      finish(transfer);
    }
  }
  static std::int64_t part(const DiskTransfer& transfer) {
    const auto bytes = static_cast<std::size_t>(transfer.left_bytes());
    const auto result = transfer.writes ? ::pwrite(transfer.file, transfer.left_memory(), bytes, transfer.left_at())
                                        : ::pread(transfer.file, transfer.left_memory(), bytes, transfer.left_at());
    return result < 0 ? -errno : result;
  }
  void join() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    ready_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  DiskSystem& system_;
  std::mutex mutex_;
  std::condition_variable ready_, over_;
  std::deque<DiskTransfer*> submitted_, finished_;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace

std::unique_ptr<DiskQueue> make_thread_queue(DiskSystem& system, int threads) {
  return std::make_unique<ThreadQueue>(system, threads);
}

}  // namespace zero
