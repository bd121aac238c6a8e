// In which order a micro-batch uses its units: that of the newest complete one predicts the next one's (ZeRO-Infinity,
// section 6.2, where it is called the operator sequence). No torch.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "zero/estimate.h"

namespace zero {

inline constexpr std::size_t kMostAhead = 2;
using Expected = std::array<int, kMostAhead>;

// Which units follow the one that is `at` in touches over and over, before the place `end`: the next one first;
// neighbours differ. -1: none.
Expected following(std::span<const int> touches, std::size_t at, std::size_t end);

class TouchOrder {
 public:
  // Of micro-batches, or of evaluations: these may go over the model any number of times, and what does not begin as
  // the last one did is none, but a look at some weights, after which nothing is foreseen.
  enum class Of : std::uint8_t { micro_batches, evaluations };

  explicit TouchOrder(Of of = Of::micro_batches) : of_(of) {}

  void touched(int unit);
  // Which follow the unit touched last, where that was foreseen, the next one first; neighbours differ. -1: not known,
  // or none.
  Expected next() const;
  // Whether the micro-batch under way is followed by another one of its step, which begins as the last one did.
  void more_to_come(bool more) { more_to_come_ = more; }
  // The micro-batch is complete, or is forgotten.
  void complete();
  void forget();

  // Until one is complete, this one predicts.
  void foresee(const Trace& trace);

  const Trace& current() const { return current_; }
  const std::optional<Trace>& last() const { return last_; }

 private:
  std::size_t place_of(int unit, bool first) const;

  Of of_;
  Trace current_;
  std::optional<Trace> last_;
  std::size_t cursor_ = 0;  // in last_, of the newest touch that was foreseen
  bool lost_ = true;        // the newest one was not
  bool more_to_come_ = false;
  bool completed_ = false;
};

}  // namespace zero
