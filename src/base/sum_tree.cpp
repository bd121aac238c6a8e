#include "base/sum_tree.h"

#include <algorithm>
#include <bit>

namespace zero {

std::vector<LeafRange> largest_nodes(const LeafRange& leaves, std::int64_t all) {
  std::vector<LeafRange> nodes;
  for (std::int64_t begin = leaves.begin; begin < leaves.end;) {
    std::int64_t length = 1;
    const auto fits = [&](std::int64_t twice) {
      return begin % twice == 0 && begin + length < all && std::min(begin + twice, all) <= leaves.end;
    };
    while (fits(2 * length)) length *= 2;
    nodes.push_back({begin, std::min(begin + length, all)});
    begin = nodes.back().end;
  }
  return nodes;
}

std::size_t left_half(std::span<const LeafRange> nodes) {
  const std::int64_t begin = nodes.front().begin, leaves = nodes.back().end - begin;
  const auto left = static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(leaves - 1)));
  const auto right = std::ranges::partition_point(
      nodes, [middle = begin + left](const LeafRange& node) { return node.begin < middle; });
  return static_cast<std::size_t>(right - nodes.begin());
}

GroupSum::GroupSum(const Leaves& leaves, int size)
    : leaves_{leaves.first, leaves.each, leaves.all == 0 ? size : leaves.all},
      size_(size),
      plain_(leaves_ == Leaves{0, 1, size}) {}

std::vector<LeafRange> GroupSum::brought(int rank) const {
  const std::int64_t begin = leaves_.first + rank * leaves_.each;
  return largest_nodes({begin, begin + leaves_.each}, leaves_.all);
}

int GroupSum::most() const {
  if (leaves_.each == 1) return 1;
  std::size_t most = 0;
  for (int rank = 0; rank < size_; ++rank) most = std::max(most, brought(rank).size());
  return static_cast<int>(most);
}

std::vector<LeafRange> GroupSum::sums() const {
  return largest_nodes({leaves_.first, leaves_.first + size_ * leaves_.each}, leaves_.all);
}

std::vector<GroupSum::Part> GroupSum::parts() const {
  std::vector<Part> parts;
  for (int rank = 0; rank < size_; ++rank)
    for (int number = 0; const LeafRange& leaves : brought(rank)) parts.push_back({rank, number++, leaves});
  return parts;
}

bool GroupSum::less_by_groups(int size, std::int64_t bytes, std::int64_t sum) const {
  const GroupSum groups(of_groups(size), size_ / size);
  return static_cast<std::int64_t>(groups.parts().size()) * sum <= static_cast<std::int64_t>(parts().size()) * bytes;
}

}  // namespace zero
