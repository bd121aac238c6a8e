#include "analysis/repetition.h"

#include <algorithm>

namespace zero {

void Repetition::add(const AllocationSign& sign, const Running& running) {
  depart();
  if (round_.size() >= kMostEntries) whole_ = false;
  if (whole_) round_.push_back({sign, running});
}

void Repetition::depart() {
  if (alike_ == nullptr) return;
  const auto known = so_far();
  round_.assign(known.begin(), known.end());
  alike_ = nullptr;
}

std::span<const Repetition::Entry> Repetition::so_far() const {
  return alike_ == nullptr ? std::span(round_) : std::span(*alike_).first(length_);
}

const Repetition::Round* Repetition::one_that_goes_on(const AllocationSign& sign) const {
  const auto known = so_far();
  const auto found = std::ranges::find_if(rounds_, [&](const Round& round) {
    return known.size() < round.size() && round[known.size()].sign == sign &&
           std::equal(known.begin(), known.end(), round.begin());
  });
  return found == rounds_.end() ? nullptr : &*found;
}

const Running* Repetition::next(const AllocationSign& sign) {
  if (!whole_) return nullptr;
  const bool goes_on = alike_ != nullptr && length_ < alike_->size() && (*alike_)[length_].sign == sign;
  if (!goes_on) {
    const Round* const other = one_that_goes_on(sign);
    if (other == nullptr) {
      whole_ = false;
      enough_ = std::min(2 * enough_, kMostRounds);
      return nullptr;
    }
    length_ = so_far().size();
    alike_ = other;
  }
  return &(*alike_)[length_++].running;
}

bool Repetition::end_round() {
  const auto same = [this](const Round& earlier) { return std::ranges::equal(earlier, so_far()); };
  const auto found = whole_ ? std::ranges::find_if(rounds_, same) : rounds_.end();
  const bool known = found != rounds_.end();
  if (whole_ && !known) depart();
  if (known) rounds_.splice(rounds_.begin(), rounds_, found);
  if (whole_ && !known) rounds_.push_front(round_);
  if (rounds_.size() > kMostRounds) rounds_.pop_back();
  alike_ = nullptr;
  length_ = 0;
  round_.clear();
  whole_ = true;
  alike_in_a_row_ = known ? alike_in_a_row_ + 1 : 0;
  return alike_in_a_row_ >= enough_;
}

}  // namespace zero
