#include "memory/address_plan.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <iterator>
#include <map>
#include <numeric>
#include <set>
#include <utility>

#include "base/elements.h"

namespace zero {
namespace {

// Beyond so many, to try others than the order in which they come takes seconds.
constexpr std::size_t kMostOneByOne = 4096;

std::int64_t room_of(const Lifetime& block) {
  return round_up(block.bytes, kBlockStep);
}

bool planned(const Lifetime& block) {
  return block.bytes > 0 && block.end != Lifetime::kStays;
}

// Events of planned blocks in their order: a block's number where it comes, its complement where it goes.
std::vector<int> events(std::span<const Lifetime> blocks) {
  std::vector<std::pair<int, int>> at;
  for (std::size_t i = 0; i < blocks.size(); ++i)
    if (planned(blocks[i])) {
      at.emplace_back(blocks[i].begin, static_cast<int>(i));
      at.emplace_back(blocks[i].end, ~static_cast<int>(i));
    }
  std::ranges::sort(at);
  std::vector<int> all;
  for (const auto& [event, block] : at) all.push_back(block);
  return all;
}

// Gaps between what lives, by where they are and by size.
class Gaps {
 public:
  // In the smallest that is large enough, else at the top.
  std::int64_t take(std::int64_t bytes) {
    const auto found = by_size_.lower_bound({bytes, -1});
    if (found == by_size_.end()) return grow(bytes);
    const auto [size, begin] = *found;
    erase(gaps_.find(begin));
    if (size > bytes) insert(begin + bytes, size - bytes);
    return begin;
  }
  // Joined with its neighbours.
  void give(std::int64_t begin, std::int64_t size) {
    auto next = gaps_.lower_bound(begin);
    if (next != gaps_.end() && next->first == begin + size) {
      size += next->second;
      next = erase(next);
    }
    if (next != gaps_.begin()) {
      const auto before = std::prev(next);
      if (before->first + before->second == begin) {
        begin = before->first;
        size += before->second;
        erase(before);
      }
    }
    insert(begin, size);
  }
  std::int64_t height() const { return height_; }

 private:
  using Where = std::map<std::int64_t, std::int64_t>;

  // A gap at the top becomes part of what is taken.
  std::int64_t grow(std::int64_t bytes) {
    std::int64_t begin = height_;
    if (!gaps_.empty()) {
      const auto last = std::prev(gaps_.end());
      if (last->first + last->second == height_) {
        begin = last->first;
        erase(last);
      }
    }
    height_ = begin + bytes;
    return begin;
  }
  void insert(std::int64_t begin, std::int64_t size) {
    gaps_.emplace(begin, size);
    by_size_.emplace(size, begin);
  }
  Where::iterator erase(Where::iterator gap) {
    by_size_.erase({gap->second, gap->first});
    return gaps_.erase(gap);
  }

  Where gaps_;
  std::set<std::pair<std::int64_t, std::int64_t>> by_size_;
  std::int64_t height_ = 0;
};

// As they come, each in the smallest gap that it fits.
AddressPlan in_order(std::span<const Lifetime> blocks) {
  AddressPlan plan{std::vector<std::int64_t>(blocks.size(), -1)};
  Gaps gaps;
  for (const int event : events(blocks)) {
    const auto number = static_cast<std::size_t>(event < 0 ? ~event : event);
    if (event >= 0)
      plan.offsets[number] = gaps.take(room_of(blocks[number]));
    else
      gaps.give(plan.offsets[number], room_of(blocks[number]));
  }
  plan.height = gaps.height();
  return plan;
}

struct Placed {
  std::int64_t offset, end;
  int from, to;  // events
};

// The lowest offset at which nothing of `placed`, which is in the order of offsets, is in the way.
std::int64_t lowest(const std::vector<Placed>& placed, const Lifetime& block) {
  std::int64_t offset = 0;
  for (const Placed& each : placed) {
    if (each.to <= block.begin || each.from >= block.end) continue;
    if (each.offset - offset >= room_of(block)) break;
    offset = std::max(offset, each.end);
  }
  return offset;
}

// One after the other as `before` has them, each as low as it can be.
template <class Before>
AddressPlan one_by_one(std::span<const Lifetime> blocks, const Before& before) {
  AddressPlan plan{std::vector<std::int64_t>(blocks.size(), -1)};
  std::vector<std::size_t> order(blocks.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, [&](std::size_t a, std::size_t b) { return before(blocks[a], blocks[b]); });
  std::vector<Placed> placed;
  for (const std::size_t i : order) {
    const Lifetime& block = blocks[i];
    if (!planned(block)) continue;
    const std::int64_t offset = lowest(placed, block), end = offset + room_of(block);
    const auto after = std::ranges::upper_bound(placed, offset, {}, &Placed::offset);
    placed.insert(after, {offset, end, block.begin, block.end});
    plan.offsets[i] = offset;
    plan.height = std::max(plan.height, end);
  }
  return plan;
}

bool larger(const Lifetime& a, const Lifetime& b) {
  return a.bytes > b.bytes;
}
bool longer(const Lifetime& a, const Lifetime& b) {
  return a.end - a.begin > b.end - b.begin;
}

}  // namespace

AddressPlan plan_addresses(std::span<const Lifetime> blocks) {
  AddressPlan plan = in_order(blocks);
  if (blocks.size() > kMostOneByOne) return plan;
  for (AddressPlan& other : std::array{one_by_one(blocks, larger), one_by_one(blocks, longer)})
    if (other.height < plan.height) plan = std::move(other);
  return plan;
}

std::int64_t largest_live_sum(std::span<const Lifetime> blocks) {
  std::int64_t live = 0, largest = 0;
  for (const int event : events(blocks)) {
    live += event < 0 ? -room_of(blocks[static_cast<std::size_t>(~event)])
                      : room_of(blocks[static_cast<std::size_t>(event)]);
    largest = std::max(largest, live);
  }
  return largest;
}

}  // namespace zero
