#include "memory/block_places.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <utility>

#include "base/elements.h"

namespace zero {
namespace {

// Who lay last on which bytes.
class Occupants {
 public:
  // `block` lies on [begin, end) from now on. Appends who lay on any of it, each once.
  void move_in(std::int64_t begin, std::int64_t end, int block, std::vector<int>& before) {
    const auto first_new = static_cast<std::ptrdiff_t>(before.size());
    auto at = last_.upper_bound(begin);
    if (at != last_.begin() && std::prev(at)->second.end > begin) --at;
    while (at != last_.end() && at->first < end) {
      const auto [from, part] = *at;
      before.push_back(part.block);
      at = last_.erase(at);
      if (from < begin) last_[from] = {begin, part.block};
      if (part.end > end) last_[end] = part;
    }
    last_[begin] = {end, block};
    std::sort(before.begin() + first_new, before.end());
    before.erase(std::unique(before.begin() + first_new, before.end()), before.end());
  }

 private:
  struct Part {
    std::int64_t end;
    int block;
  };
  std::map<std::int64_t, Part> last_;  // by where the part begins
};

}  // namespace

BlockPlaces::BlockPlaces(std::vector<Lifetime> blocks)
    : blocks_(std::move(blocks)), plan_(plan_addresses(blocks_)), start_(blocks_.size(), -1) {
  Occupants occupants;
  for (int block = 0; block < count(); ++block) {
    before_begin_.push_back(before_.size());
    if (offset(block) < 0) continue;
    occupants.move_in(offset(block), offset(block) + round_up(bytes(block), kBlockStep), block, before_);
    start_[index(block)] = starts_.emplace(offset(block), starts()).first->second;
  }
  before_begin_.push_back(before_.size());
}

}  // namespace zero
