// The tree of a sum and its nodes. A tree of `all` leaves has the nodes [k 2^j, (k + 1) 2^j), cut off at `all`: each is
// the sum of two others, or a leaf; pairs, pairs of pairs, left-overs joined from the small end. Whoever has the sums
// of some nodes can go on as if it had all their leaves. No torch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "zero/communicator.h"

namespace zero {

struct LeafRange {
  std::int64_t begin = 0, end = 0;
  bool operator==(const LeafRange&) const = default;
};

// The largest nodes that cover the leaves, in their order: at most 2 log2 of their number.
std::vector<LeafRange> largest_nodes(const LeafRange& leaves, std::int64_t all);

// How many of the nodes, which are in order and together a node of more than one leaf, are its left half.
std::size_t left_half(std::span<const LeafRange> nodes);

// What the ranks of a group bring to a sum by `leaves`, which they may, and what comes of it.
class GroupSum {
 public:
  GroupSum(const Leaves& leaves, int size);

  // A leaf of each rank, and their sum.
  bool plain() const { return plain_; }
  std::vector<LeafRange> brought(int rank) const;
  int most() const;  // that a rank brings
  std::vector<LeafRange> sums() const;

  struct Part {
    int rank = 0;
    int number = 0;  // of those that the rank brings
    LeafRange leaves;
  };
  std::vector<Part> parts() const;  // of all ranks, in order

  // Whether what groups of `size` neighbours have added up, of `sum` bytes each, is no more than what ranks bring, each
  // of `bytes`.
  bool less_by_groups(int size, std::int64_t bytes, std::int64_t sum) const;
  // The same sum, of groups of `size` neighbours; and within the group of this number.
  Leaves of_groups(int size) const { return {leaves_.first, leaves_.each * size, leaves_.all}; }
  Leaves within(int group, int size) const {
    return {leaves_.first + leaves_.each * size * group, leaves_.each, leaves_.all};
  }

 private:
  Leaves leaves_;
  int size_;
  bool plain_;
};

}  // namespace zero
