#include "memory/disk_measure.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <span>

#include "base/huge_pages.h"
#include "memory/block.h"
#include "memory/disk_queue.h"

namespace zero {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::int64_t kTried = std::int64_t{32} << 20;  // bytes of each file
constexpr auto kTime = std::chrono::milliseconds(25);    // of a size's reading, and of its writing
constexpr double kAlike = 1.05;

class Measurement {
 public:
  Measurement(DiskSystem& system, const std::vector<DiskFile>& files, DiskQueueKind kind, std::int64_t block, int depth)
      : files_(files),
        block_(block),
        transfers_(static_cast<std::size_t>(depth) * files.size()),
        memory_(huge_page_memory(transfers_.size() * static_cast<std::size_t>(block))),
        queue_(
            make_disk_queue(kind, system, static_cast<int>(transfers_.size()),
                            {static_cast<char*>(memory_.get()), transfers_.size() * static_cast<std::size_t>(block)})) {
    for (std::size_t i = 0; i < transfers_.size(); ++i) {
      transfers_[i].memory = static_cast<char*>(memory_.get()) + static_cast<std::int64_t>(i) * block;
      transfers_[i].bytes = block;
    }
  }

  // Of a byte, once `least` were moved and that took so long. Throws StoreError.
  double seconds(bool writes, std::int64_t least, Clock::duration time) {
    const Clock::time_point begin = Clock::now();
    const DiskTransfer* failed = nullptr;
    std::int64_t moved = 0;
    for (DiskTransfer& transfer : transfers_) give(transfer, writes);
    for (std::size_t under_way = transfers_.size(); under_way > 0;) {
      DiskTransfer& over = *queue_->wait();
      moved += block_;
      if (over.error != 0) failed = &over;
      if (failed == nullptr && (moved < least || Clock::now() - begin < time))
        give(over, writes);
      else
        --under_way;
    }
    if (failed == nullptr)
      return std::chrono::duration<double>(Clock::now() - begin).count() / static_cast<double>(moved);
    const auto of_it = [failed](const DiskFile& file) { return file.descriptor() == failed->file; };
    disk_fault("measuring", *failed, *std::ranges::find_if(files_, of_it)).raise();
  }

 private:
  void give(DiskTransfer& transfer, bool writes) {
    const auto files = static_cast<std::int64_t>(files_.size());
    transfer.file = files_[static_cast<std::size_t>(next_ % files)].descriptor();
    transfer.at = next_++ / files * block_ % kTried;
    transfer.writes = writes;
    transfer.begin();
    queue_->submit(transfer);
  }

  const std::vector<DiskFile>& files_;
  std::int64_t block_;
  std::vector<DiskTransfer> transfers_;
  std::shared_ptr<void> memory_;
  std::unique_ptr<DiskQueue> queue_;
  std::int64_t next_ = 0;
};

bool reserve(std::vector<DiskFile>& files) {
  try {
    for (DiskFile& file : files) file.reserve(kTried);
    return true;
  } catch (const StoreError&) {
    return false;  // so little may be enough for what comes
  }
}

std::int64_t best_block(DiskSystem& system, const std::vector<DiskFile>& files, DiskQueueKind kind, int depth) {
  std::int64_t best = kDiskBlock;
  double least = 0;
  for (std::int64_t block = kDiskBlock; block >= kDiskBlock / 4; block /= 2) {
    const int under_way = depth > 0 ? depth : static_cast<int>(disk_depth(block));
    Measurement measurement(system, files, kind, block, under_way);
    // The first pages of a new file are written once, which takes longer.
    const auto all = kTried * static_cast<std::int64_t>(files.size());
    if (least == 0) measurement.seconds(/*writes=*/true, all, {});
    const double seconds = measurement.seconds(true, 0, kTime) + measurement.seconds(false, 0, kTime);
    if (least > 0 && seconds * kAlike > least) continue;
    least = seconds;
    best = block;
  }
  return best;
}

}  // namespace

std::int64_t measured_block(DiskSystem& system, std::vector<DiskFile>& files, DiskQueueKind kind, int depth) {
  const std::int64_t best = reserve(files) ? best_block(system, files, kind, depth) : kDiskBlock;
  for (DiskFile& file : files) file.give_back(0);
  return best;
}

}  // namespace zero
