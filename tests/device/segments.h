// What LibTorch's caching allocators of GPUs would reserve of a device for the blocks that it is asked for: the sizes
// of segments, when blocks are split, and which free one is taken, are theirs as documented. Nothing is given back to
// the device, as there, unless it is said. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <map>

namespace zero::test::accelerator {

class Segments {
 public:
  using Id = std::int64_t;

  Id take(std::size_t bytes, std::int64_t stream);
  void give(Id block);
  // Gives back the segments that nothing is in.
  void empty_cache();
  std::int64_t reserved() const { return reserved_; }

 private:
  struct Piece {
    std::size_t bytes;
    bool free;
  };
  struct Segment {
    std::int64_t stream;
    bool small;
    std::list<Piece> pieces;
  };
  struct Place {
    Segment* segment;
    std::list<Piece>::iterator piece;
  };

  Place find(std::size_t bytes, std::int64_t stream, bool small);

  std::list<Segment> segments_;
  std::map<Id, Place> taken_;
  std::int64_t reserved_ = 0;
  Id next_ = 0;
};

}  // namespace zero::test::accelerator
