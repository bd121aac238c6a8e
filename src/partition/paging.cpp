#include "partition/paging.h"

#include <algorithm>
#include <span>
#include <string>

#include "partition/residency.h"
#include "partition/touch_order.h"
#include "zero/error.h"

namespace zero {
namespace {

// The trace over and over, without units that have no elements.
class Walk {
 public:
  Walk(const std::vector<std::int64_t>& unit_bytes, const Trace& trace, int repetitions) {
    for (const int unit : trace.touches) {
      check(unit, unit_bytes.size());
      const bool empty = unit_bytes[static_cast<std::size_t>(unit)] == 0;
      const bool repeated = !touches_.empty() && touches_.back() == unit;
      if (!empty && !repeated) touches_.push_back(unit);
    }
    size_ = length() * repetitions;
  }

  std::int64_t length() const { return static_cast<std::int64_t>(touches_.size()); }  // of a repetition
  int operator[](std::int64_t i) const { return touches_[static_cast<std::size_t>(i) % touches_.size()]; }

  // Which follow position i, within one repetition.
  Expected next(std::int64_t i) const {
    return following(touches_, static_cast<std::size_t>(i),
                     static_cast<std::size_t>(std::min(size_, i + length() + 1)));
  }

 private:
  static void check(int unit, std::size_t units) {
    if (unit >= 0 && unit < static_cast<int>(units)) return;
    throw ConfigError("the trace touches unit " + std::to_string(unit) + ", but the layout has " +
                      std::to_string(units));
  }

  std::vector<int> touches_;
  std::int64_t size_ = 0;
};

class Pages {
 public:
  Pages(const Plan& plan, const std::vector<std::int64_t>& unit_bytes, const Trace& trace)
      : walk_(unit_bytes, trace, plan.accumulate()),
        last_(plan.accumulate() - 1),
        residents_(residency(plan, unit_bytes)),
        paging_{std::vector<std::int64_t>(unit_bytes.size()), 0} {}

  // A micro-batch that finds what the one before it found does as that one did, so that it is counted without being
  // gone through; but for the last, behind which nothing is gathered ahead.
  Paging run() && {
    std::vector<int> before;
    for (int i = 0; i <= last_; ++i) {
      std::vector<int> found = residents_.residents();
      const std::vector<std::int64_t> gathered = paging_.gathers;
      micro_batch(i);
      if (i > 0 && i < last_ && found == before) {
        count_again(gathered, last_ - 1 - i);
        i = last_ - 1;
      }
      before = std::move(found);
    }
    return std::move(paging_);
  }

 private:
  void micro_batch(std::int64_t number) {
    for (std::int64_t i = number * walk_.length(); i < (number + 1) * walk_.length(); ++i) {
      const int unit = walk_[i];
      if (!residents_.resident(unit)) {
        residents_.admit(unit);
        gather(unit);
      }
      residents_.touch(unit);
      const Expected expected = walk_.next(i);
      int keep = unit;
      for (const int next : std::span(expected).first(residents_.ahead_of(unit, expected))) {
        if (!residents_.resident(next)) {
          residents_.admit(next, keep);
          gather(next);
        }
        keep = next;
      }
    }
  }

  void gather(int unit) {
    ++paging_.gathers[static_cast<std::size_t>(unit)];
    paging_.most = std::max(paging_.most, residents_.bytes());
  }

  // What was gathered since, so many times more.
  void count_again(const std::vector<std::int64_t>& since, std::int64_t times) {
    for (std::size_t i = 0; i < since.size(); ++i) paging_.gathers[i] += times * (paging_.gathers[i] - since[i]);
  }

  Walk walk_;
  int last_;
  Residency residents_;
  Paging paging_;
};

}  // namespace

Paging paging(const Plan& plan, const std::vector<std::int64_t>& unit_bytes, const Trace& trace) {
  return Pages(plan, unit_bytes, trace).run();
}

}  // namespace zero
