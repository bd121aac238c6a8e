// Where one moment of a unit's parameters lies on a rank. Parameters of a unit may have different
// optimizers; what one of them does not keep takes no memory. No torch.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "zero/layout.h"

namespace zero {

class PackedRanges {
 public:
  // Of the unit's elements [begin, end), those whose slot is `kept`, together with the gap behind each slot,
  // one after the other: all of them where every slot is.
  PackedRanges(const UnitLayout& unit, std::int64_t begin, std::int64_t end,
               const std::function<bool(const Slot&)>& kept);

  std::int64_t length() const { return length_; }
  // The place of an element of the unit that is kept.
  std::int64_t at(std::int64_t element) const;

 private:
  struct Run {
    std::int64_t begin = 0;  // in the unit
    std::int64_t end = 0;
    std::int64_t place = 0;
  };
  std::vector<Run> runs_;
  std::int64_t length_ = 0;
};

}  // namespace zero
