// In which order a micro-batch uses its units: that of the newest complete one predicts the next one's (ZeRO-Infinity,
// section 6.2, where it is called the operator sequence). No torch.
#pragma once

#include <array>
#include <cstddef>
#include <optional>

#include "zero/estimate.h"

namespace zero {

inline constexpr std::size_t kMostAhead = 2;
using Expected = std::array<int, kMostAhead>;

class TouchOrder {
 public:
  void touched(int unit);
  // Which follow the unit touched last, where that was foreseen, the next one first; neighbours differ. -1: not known,
  // or none.
  Expected next() const;
  // Whether the micro-batch under way is followed by another one of its step, which begins as the last one did.
  void more_to_come(bool more) { more_to_come_ = more; }
  // The micro-batch is complete, or is forgotten.
  void complete();
  void forget();

  const std::optional<Trace>& last() const { return last_; }

 private:
  Trace current_;
  std::optional<Trace> last_;
  std::size_t cursor_ = 0;  // in last_, of the newest touch that was foreseen
  bool lost_ = true;        // the newest one was not
  bool more_to_come_ = false;
};

}  // namespace zero
