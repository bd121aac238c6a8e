#include "base/sum_tree.h"

#include <algorithm>
#include <bit>

namespace zero {
namespace {

template <class Use>
void each_node(const LeafRange& leaves, std::int64_t all, Use use) {
  const std::int64_t last = std::min(leaves.end, all);
  for (std::int64_t begin = leaves.begin; begin < last;) {
    std::int64_t length = 1;
    const auto fits = [&](std::int64_t twice) {
      return begin % twice == 0 && begin + length < all && std::min(begin + twice, all) <= last;
    };
    while (fits(2 * length)) length *= 2;
    const LeafRange node{begin, std::min(begin + length, all)};
    use(node);
    begin = node.end;
  }
}

}  // namespace

std::vector<LeafRange> largest_nodes(const LeafRange& leaves, std::int64_t all) {
  std::vector<LeafRange> nodes;
  each_node(leaves, all, [&](const LeafRange& node) { nodes.push_back(node); });
  return nodes;
}

int count_nodes(const LeafRange& leaves, std::int64_t all) {
  int count = 0;
  each_node(leaves, all, [&](const LeafRange&) { ++count; });
  return count;
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

bool GroupSum::single() const {
  return std::has_single_bit(static_cast<std::uint64_t>(leaves_.each)) && leaves_.first % leaves_.each == 0;
}

int GroupSum::most() const {
  int most = 1;
  for (int rank = 0; rank < size_ && !single(); ++rank) most = std::max(most, brought(rank));
  return most;
}

std::int64_t GroupSum::brought() const {
  if (single()) return size_;
  std::int64_t all = 0;
  for (int rank = 0; rank < size_; ++rank) all += brought(rank);
  return all;
}

bool GroupSum::less_by_groups(int size, std::int64_t bytes, std::int64_t sum) const {
  return GroupSum(of_groups(size), size_ / size).brought() * sum <= brought() * bytes;
}

SumParts::SumParts(const GroupSum& sum) : sums(largest_nodes(sum.leaves_of_all(), sum.all())) {
  for (int rank = 0; rank < sum.size(); ++rank)
    each_node(sum.leaves_of(rank), sum.all(), [&, number = 0](const LeafRange& node) mutable {
      parts.push_back({rank, number++});
      nodes.push_back(node);
    });
}

}  // namespace zero
