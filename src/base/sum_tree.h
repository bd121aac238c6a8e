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

// The largest nodes that cover the leaves, in their order: at most 2 log2 of their number. And how many they are.
std::vector<LeafRange> largest_nodes(const LeafRange& leaves, std::int64_t all);
int count_nodes(const LeafRange& leaves, std::int64_t all);

// How many of the nodes, which are in order and together a node of more than one leaf, are its left half.
std::size_t left_half(std::span<const LeafRange> nodes);

// A sum over a group of ranks: what they bring to it by `leaves`, which they may, and what comes of it.
class GroupSum {
 public:
  GroupSum(const Leaves& leaves, int size);

  // A leaf of each rank, and their sum; each rank's leaves are a node.
  bool plain() const { return plain_; }
  bool single() const;
  // Sums of nodes: of a rank, of the rank that brings most, of all ranks, and that come of it.
  int brought(int rank) const { return count_nodes(leaves_of(rank), leaves_.all); }
  int most() const;
  std::int64_t brought() const;
  int sums() const { return count_nodes(leaves_of_all(), leaves_.all); }

  // Whether what groups of `size` neighbours have added up, of `sum` bytes each, is no more than what ranks bring, each
  // of `bytes`.
  bool less_by_groups(int size, std::int64_t bytes, std::int64_t sum) const;
  // The same sum, of groups of `size` neighbours; and within the group of this number.
  Leaves of_groups(int size) const { return {leaves_.first, leaves_.each * size, leaves_.all}; }
  Leaves within(int group, int size) const {
    return {leaves_.first + leaves_.each * size * group, leaves_.each, leaves_.all};
  }

  LeafRange leaves_of(int rank) const {
    return {leaves_.first + rank * leaves_.each, leaves_.first + (rank + 1) * leaves_.each};
  }
  LeafRange leaves_of_all() const { return {leaves_.first, leaves_.first + size_ * leaves_.each}; }
  int size() const { return size_; }
  std::int64_t all() const { return leaves_.all; }

 private:
  Leaves leaves_;
  int size_;
  bool plain_;
};

// Node by node, in the order of the leaves: who brings them, and what comes of them.
struct SumParts {
  explicit SumParts(const GroupSum& sum);

  struct Part {
    int rank = 0;
    int number = 0;  // of those that the rank brings
  };
  std::vector<Part> parts;
  std::vector<LeafRange> nodes;  // by part
  std::vector<LeafRange> sums;

  // Calls use(sum, first, number): of which parts each of the sums is.
  template <class Use>
  void each_sum(const Use& use) const {
    std::size_t first = 0;
    for (std::size_t sum = 0; sum < sums.size(); ++sum) {
      std::size_t end = first;
      while (end < nodes.size() && nodes[end].end <= sums[sum].end) ++end;
      use(sum, first, end - first);
      first = end;
    }
  }
};

}  // namespace zero
