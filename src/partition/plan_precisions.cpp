// What a plan's precision says: names, and the dtypes that follow from it.
#include <array>

#include "base/text.h"
#include "zero/error.h"
#include "zero/plan.h"

namespace zero {
namespace {

// In the order of the enumeration.
struct PrecisionColumn {
  std::string_view name;
  Dtype stored;  // of fp32 parameters
  Remainder remainder;
};
constexpr std::array<PrecisionColumn, 7> kPrecisions{{{"fp32", Dtype::f32, Remainder::main_weights},
                                                      {"bf16", Dtype::bf16, Remainder::main_weights},
                                                      {"fp16", Dtype::f16, Remainder::main_weights},
                                                      {"fp8", Dtype::bf16, Remainder::main_weights},
                                                      {"bf16-pure", Dtype::bf16, Remainder::lost},
                                                      {"bf16-sr", Dtype::bf16, Remainder::random},
                                                      {"bf16-kahan", Dtype::bf16, Remainder::kept}}};

const PrecisionColumn& column(Precision precision) {
  return kPrecisions[static_cast<std::size_t>(precision)];
}

}  // namespace

std::string_view name(Precision precision) {
  return column(precision).name;
}

std::vector<std::string_view> precisions() {
  std::vector<std::string_view> names;
  for (const PrecisionColumn& column : kPrecisions) names.push_back(column.name);
  return names;
}

Precision precision_named(std::string_view name) {
  for (std::size_t i = 0; i < kPrecisions.size(); ++i)
    if (kPrecisions[i].name == name) return static_cast<Precision>(i);
  throw ConfigError("unknown precision " + in_quotes(name), "one of " + joined(precisions(), ", "));
}

Dtype Plan::compute_dtype(Dtype dtype) const {
  return dtype == Dtype::f32 ? column(precision_).stored : dtype;
}

// What is reproducible rounds no sum, so that it does not matter which sums are made here and which over ranks.
Dtype Plan::gradient_dtype(Dtype stored) const {
  const bool narrow = column(precision_).stored != Dtype::f32;
  return narrow && accumulate_ == 1 && !reproducible_ ? stored : accumulation(stored);
}

Dtype Plan::reduction_dtype(Dtype stored) const {
  if (const auto chosen = reduction(); chosen && accumulation(stored) == Dtype::f32) return *chosen;
  return (*this)[State::gradient].between.shard == Placement::sharded ? stored : gradient_dtype(stored);
}

Remainder Plan::remainder(Dtype stored) const {
  return stored == Dtype::bf16 ? column(precision_).remainder : Remainder::main_weights;
}

std::int64_t Plan::remainder_bytes(Dtype stored) const {
  if (accumulation(stored) == stored) return 0;
  switch (remainder(stored)) {
    case Remainder::main_weights: return size_of(accumulation(stored));
    case Remainder::kept: return size_of(stored);
    default: return 0;
  }
}

}  // namespace zero
