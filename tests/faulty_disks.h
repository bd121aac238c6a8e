// A store on the disk below the temporary folder, whose system fails when it is told to.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <vector>

#include "folder.h"
#include "memory/disk_queue.h"
#include "memory/disk_store.h"

namespace zero::test {

// What is left empty is the system's. Called by several threads, one at a time.
class FaultyDisks final : public DiskSystem {
 public:
  std::function<int(const std::string& path, int flags)> on_open;  // 0: the system's
  std::function<int(std::int64_t end)> on_allocate;                // likewise
  std::function<std::int64_t(const DiskTransfer& transfer, std::int64_t result)> on_result;
  std::int64_t largest = 0;      // of the files
  std::int64_t transferred = 0;  // parts of transfers

  int open(const std::string& path, int flags) override {
    const int fault = on_open ? on_open(path, flags) : 0;
    return fault != 0 ? fault : DiskSystem::open(path, flags);
  }
  int allocate(int file, std::int64_t at, std::int64_t bytes) override {
    const int fault = on_allocate ? on_allocate(at + bytes) : 0;
    if (fault == 0) largest = std::max(largest, at + bytes);
    return fault != 0 ? fault : DiskSystem::allocate(file, at, bytes);
  }
  std::int64_t result(const DiskTransfer& transfer, std::int64_t bytes) override {
    const std::lock_guard lock(mutex_);
    ++transferred;
    return on_result ? on_result(transfer, bytes) : bytes;
  }

 private:
  std::mutex mutex_;
};

// Those that can be had here.
inline std::vector<DiskQueueKind> disk_queues() {
  std::string reason;
  std::vector<DiskQueueKind> kinds{DiskQueueKind::threads};
  if (make_uring_queue(disk_system(), 1, {}, reason)) kinds.push_back(DiskQueueKind::io_uring);
  return kinds;
}

inline std::string name_of(DiskQueueKind kind) {
  return kind == DiskQueueKind::threads ? "Threads" : "IoUring";
}

class OnDisks {
 public:
  static constexpr std::int64_t kBlock = 4 * kDiskPage;
  static constexpr int kDepth = 3;

  // Small operations, so that there are many.
  DiskOptions options(DiskQueueKind queue, int directories = 1) {
    DiskOptions result{.block = kBlock, .depth = kDepth, .queue = queue};
    while (static_cast<int>(folders_.size()) < directories) folders_.push_back(std::make_unique<Folder>());
    for (int i = 0; i < directories; ++i) result.directories.emplace_back(folder(i));
    return result;
  }
  std::string folder(int which = 0) const { return folders_[static_cast<std::size_t>(which)]->path(); }
  std::unique_ptr<DiskStore> store(const DiskOptions& options) {
    return std::make_unique<DiskStore>(options, memory, book(), system);
  }
  std::int64_t booked(Owner owner, int unit, Tier tier) {
    const std::lock_guard lock(mutex_);
    return booked_[{owner, unit, tier}];
  }

  FaultyDisks system;

 private:
  Store::Book book() {
    return [this](Owner owner, int unit, Tier tier, std::int64_t bytes) {
      const std::lock_guard lock(mutex_);
      booked_[{owner, unit, tier}] += bytes;
    };
  }

  std::vector<std::unique_ptr<Folder>> folders_;
  std::mutex mutex_;
  std::map<std::tuple<Owner, int, Tier>, std::int64_t> booked_;

 public:
  AddressableStore memory{Tier::device,
                          [](std::size_t bytes) {
                            return in_memory({std::malloc(bytes), std::free});
                          },
                          book()};
};

// Memory that begins `off` bytes behind a page.
class Bytes {
 public:
  Bytes(std::int64_t count, std::int64_t off)
      : memory_(static_cast<std::size_t>(count + off + kDiskPage)), count_(count) {
    const auto begin = reinterpret_cast<std::uintptr_t>(memory_.data());
    data_ = memory_.data() + (kDiskPage - static_cast<std::int64_t>(begin % kDiskPage)) % kDiskPage + off;
  }
  char* data() { return data_; }
  View view() { return {data_, count_, Dtype::u8}; }
  std::string text() const { return {data_, static_cast<std::size_t>(count_)}; }
  Bytes& filled(const std::string& text) {
    text.copy(data_, static_cast<std::size_t>(count_));
    return *this;
  }

 private:
  std::vector<char> memory_;
  std::int64_t count_;
  char* data_;
};

// Letters that differ from place to place, and with `seed`.
inline std::string letters(std::int64_t count, unsigned seed) {
  std::string text(static_cast<std::size_t>(count), '\0');
  for (std::size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>((i * 2654435761U + seed * 40503U) >> 11);
  return text;
}

inline std::string all_of(const zero::Block& block) {
  Bytes bytes(block.bytes(), 0);
  block.read(0, bytes.view()).wait();
  return bytes.text();
}

}  // namespace zero::test
