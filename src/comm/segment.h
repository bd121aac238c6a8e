// Memory that the ranks of one host share: one anonymous file, mapped whole by each rank. It has no name,
// so nothing is left of it when the last process has gone, however that ended. The file is sparse: what
// nobody was given costs address space only.
//
//   control | staging of rank 0, 1, ... | common memory | memory of rank 0, 1, ...
//
// Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

#include "base/lifetimes.h"
#include "comm/descriptor_passing.h"

namespace zero {

// Which parts of a range of the segment are in use: first fit, in pages. Pages stay when given back, for
// the next who needs them.
class Heap {
 public:
  Heap() = default;
  Heap(std::int64_t begin, std::int64_t end) { free_[begin] = end - begin; }

  // The offset of `bytes`, rounded up to pages; -1 when there is no room.
  std::int64_t take(std::int64_t bytes);
  void give(std::int64_t offset, std::int64_t bytes);

 private:
  std::map<std::int64_t, std::int64_t> free_;  // offset to length, never adjacent
};

class Segment : public std::enable_shared_from_this<Segment> {
 public:
  struct Shape {
    int ranks;
    std::int64_t control;  // bytes
    std::int64_t staging;  // bytes a rank
  };

  // A file for so many ranks. Throws CommError.
  static Descriptor create(const Shape& shape);
  // Maps it for `rank`. Throws CommError.
  Segment(const Descriptor& file, int rank, const Shape& shape);
  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  char* at(std::int64_t offset) const { return base_ + offset; }
  char* staging(int rank) const { return at(shape_.control + rank * shape_.staging); }
  // -1 for memory that is not of the segment.
  std::int64_t offset_of(const void* data) const;

  // Throws ConfigError when the host has no room.
  std::shared_ptr<void> own_memory(std::int64_t bytes);
  std::shared_ptr<void> common_memory(std::int64_t bytes);

  // Marks the rank as alive until it leaves or its process ends.
  void join() const;
  // Whether a rank that has joined still is.
  bool alive(int rank) const;
  // Whether this is a child of the process that is the rank: it has no say.
  bool inherited() const { return !origin_.here(); }

 private:
  std::int64_t take(Heap& heap, std::int64_t bytes);
  void reserve(std::int64_t offset, std::int64_t bytes) const;
  void map();

  Descriptor file_;
  int rank_;
  Shape shape_;
  std::int64_t size_;
  ProcessOfOrigin origin_;  // that mapped it
  char* base_ = nullptr;
  std::mutex mutex_;
  Heap common_;
  Heap own_;
};

}  // namespace zero
