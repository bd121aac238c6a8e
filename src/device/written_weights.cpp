#include "device/written_weights.h"

namespace zero {
namespace {

template <class Narrow>
void adopt_all(const Narrow* written, float* main, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) adopt_changed(written[i], main[i]);
}

}  // namespace

void keep_rest(const float* values, Bf16* rest, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) rest_of(values[i], rest[i]);
}

void drop_misfits(const Bf16* written, Bf16* rest, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) drop_misfit(written[i], rest[i]);
}

void adopt_written(const void* written, Dtype stored, float* main, std::int64_t count) {
  if (stored == Dtype::bf16) return adopt_all(static_cast<const Bf16*>(written), main, count);
  adopt_all(static_cast<const Fp16*>(written), main, count);
}

}  // namespace zero
