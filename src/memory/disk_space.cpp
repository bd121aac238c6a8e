#include "memory/disk_space.h"

#include <iterator>

#include "base/round_up.h"

namespace zero {
std::int64_t DiskSpace::take(std::int64_t bytes, std::int64_t alignment,
                             const std::function<void(std::int64_t)>& grow) {
  for (const auto& [begin, end] : free_) {
    const std::int64_t at = round_up(begin, alignment), from = begin, to = end;
    if (at + bytes > to) continue;
    if (at + bytes < to) free_.emplace(at + bytes, to);
    if (at > from)
      free_[from] = at;
    else
      free_.erase(from);
    return at;
  }
  const bool extends = !free_.empty() && std::prev(free_.end())->second == end_;
  const std::int64_t from = extends ? std::prev(free_.end())->first : end_, at = round_up(from, alignment);
  grow(at + bytes);
  if (extends) free_.erase(from);
  if (at > from) free_[from] = at;
  end_ = at + bytes;
  return at;
}

void DiskSpace::give(std::int64_t at, std::int64_t bytes) {
  std::int64_t end = at + bytes;
  const auto next = free_.lower_bound(at);
  if (next != free_.end() && next->first == end) {
    end = next->second;
    free_.erase(next);
  }
  const auto after = free_.lower_bound(at);
  if (after != free_.begin() && std::prev(after)->second == at)
    std::prev(after)->second = end;
  else
    free_.emplace(at, end);
}

}  // namespace zero
