#include "device/weights.h"

namespace zero {
namespace {

template <class Narrow>
void adopt_changed(const Narrow* written, float* main, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) {
    Narrow rounded;
    narrow(main[i], rounded);
    if (widen(rounded) != widen(written[i])) main[i] = widen(written[i]);
  }
}

}  // namespace

void keep_rest(const float* values, Bf16* rest, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) {
    Bf16 rounded;
    narrow(values[i], rounded);
    cut(values[i] - widen(rounded), rest[i]);
  }
}

void drop_misfits(const Bf16* written, Bf16* rest, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) {
    Bf16 rounded;
    narrow(widen(written[i]) + widen(rest[i]), rounded);
    if (rounded.bits != written[i].bits) rest[i] = {};
  }
}

void adopt_written(const void* written, Dtype stored, float* main, std::int64_t count) {
  if (stored == Dtype::bf16) return adopt_changed(static_cast<const Bf16*>(written), main, count);
  adopt_changed(static_cast<const Fp16*>(written), main, count);
}

}  // namespace zero
