#include "analysis/repetition.h"

#include <algorithm>

namespace zero {

void Repetition::add(const AllocationSign& sign, std::string_view operation) {
  if (round_.size() >= kMostEntries) whole_ = false;
  if (whole_) round_.push_back({sign, &*names_.emplace(operation).first});
}

const std::string* Repetition::next(const AllocationSign& sign) {
  if (!whole_) return nullptr;
  const std::size_t place = round_.size();
  const auto goes_on = [&](const Round& earlier) { return place < earlier.size() && earlier[place].sign == sign; };
  if (alike_ == nullptr || !goes_on(*alike_)) {
    const auto found = std::ranges::find_if(rounds_, [&](const Round& earlier) {
      return goes_on(earlier) && std::equal(round_.begin(), round_.end(), earlier.begin());
    });
    whole_ = found != rounds_.end();
    alike_ = whole_ ? &*found : nullptr;
  }
  if (!whole_) {
    enough_ = std::min(2 * enough_, kMostRounds);
    return nullptr;
  }
  round_.push_back((*alike_)[place]);
  return round_.back().operation;
}

bool Repetition::end_round() {
  const auto same = whole_ ? std::ranges::find(rounds_, round_) : rounds_.end();
  const bool known = same != rounds_.end();
  if (known) rounds_.splice(rounds_.begin(), rounds_, same);
  if (whole_ && !known) rounds_.push_front(round_);
  if (rounds_.size() > kMostRounds) rounds_.pop_back();
  round_.clear();
  alike_ = nullptr;
  whole_ = true;
  alike_in_a_row_ = known ? alike_in_a_row_ + 1 : 0;
  return alike_in_a_row_ >= enough_;
}

}  // namespace zero
