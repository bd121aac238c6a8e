// Main weights, or what rounding cut off them, beside parameters that a program has written. No torch.
#pragma once

#include <cstdint>

#include "base/both.h"
#include "base/half.h"
#include "zero/dtype.h"

namespace zero {

// Of one weight.
ZERO_BOTH inline void rest_of(float value, Bf16& rest) {
  Bf16 rounded;
  narrow(value, rounded);
  cut(value - widen(rounded), rest);
}
ZERO_BOTH inline void drop_misfit(Bf16 written, Bf16& rest) {
  Bf16 rounded;
  narrow(widen(written) + widen(rest), rounded);
  if (rounded.bits != written.bits) rest = {};
}
template <class Narrow>
ZERO_BOTH inline void adopt_changed(Narrow written, float& main) {
  Narrow rounded;
  narrow(main, rounded);
  if (widen(rounded) != widen(written)) main = widen(written);
}

// What rounding to bf16 cuts off the values.
void keep_rest(const float* values, Bf16* rest, std::int64_t count);
// Forgets what does not belong to a value that was written.
void drop_misfits(const Bf16* written, Bf16* rest, std::int64_t count);
// Main weights become what was written, of type `stored`, bf16 or f16, unless they are rounded to just that.
void adopt_written(const void* written, Dtype stored, float* main, std::int64_t count);

}  // namespace zero
