// Operations on what a block has on disks, and the checks of its pages. No torch.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>

#include "base/lifetimes.h"
#include "memory/block.h"
#include "memory/disk_queue.h"
#include "zero/pending.h"

namespace zero {

// A block's place in the line of bytes that goes over all files. Begins on a page; the rest of its last page is its
// own.
struct DiskExtent {
  std::int64_t at = 0;
  std::int64_t bytes = 0;
  std::string whose;  // "optimizer of unit 3"
  Block checks;       // a std::uint64_t for each page, 0 for one that was never written; none: they are not kept
};

class DiskOperation final : public Pending::State {
 public:
  DiskOperation(DiskExtent& of, std::int64_t begin, char* data, std::int64_t size, bool write)
      : extent(of), at(begin), memory(data), bytes(size), writes(write) {}

  void wait() override;
  bool done() override;

  // Before it is submitted.
  void consists_of(int pieces) { left_ = pieces; }
  void piece_is_over(const std::optional<DiskFault>& fault = {});
  bool failed();

  DiskExtent& extent;
  const std::int64_t at;  // in the line
  char* const memory;
  const std::int64_t bytes;
  const bool writes;

 private:
  ProcessOfOrigin origin_;
  std::mutex mutex_;
  std::condition_variable over_;
  int left_ = 0;
  std::optional<DiskFault> fault_;  // of the first piece that failed
};

// XXH3 of a page on disks, of kDiskPage bytes; never 0.
std::uint64_t disk_check(const char* page);

// The checks of an extent that keeps them, from the page on that begins at this place in the line.
std::uint64_t* disk_checks(const DiskExtent& extent, std::int64_t at);

}  // namespace zero
