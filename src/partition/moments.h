// What optimizers keep of a unit's parameters: what it means, and the arrays that it lies in, one for each moment in
// each format. No torch.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "base/blockwise.h"
#include "zero/dtype.h"
#include "zero/layout.h"
#include "zero/optimizer.h"

namespace zero {

inline const ParameterRule& rule_of(const Slot& slot, const std::vector<ParameterRule>& rules) {
  return rules[static_cast<std::size_t>(slot.index)];
}

// Of a moment's values in an array, for a unit stored in `stored`.
constexpr Dtype moment_dtype(MomentFormat format, Dtype stored) {
  if (stored == Dtype::f64 || format == MomentFormat::wide) return accumulation(stored);
  return format == MomentFormat::bf16 ? Dtype::bf16 : Dtype::u8;
}
inline Dtype moment_dtype(const Optimizer& optimizer, Dtype stored) {
  return moment_dtype(moment_format(optimizer), stored);
}

struct MomentArray {
  int moment = 0;
  MomentFormat format = MomentFormat::wide;

  bool holds(const Optimizer& optimizer) const {
    return moments(optimizer) > moment && moment_format(optimizer) == format;
  }
  Dtype dtype(Dtype stored) const { return moment_dtype(format, stored); }
};

// Blocks of the unit's flat array, counted from its start, that a piece of a parameter touches: of each it has a
// scale of its own, so that parameters do not share any.
constexpr std::int64_t scales(const Piece& piece) {
  return (piece.end - 1) / kStateBlock - piece.begin / kStateBlock + 1;
}

inline std::int64_t scale_bytes(const Piece& piece, const Optimizer& optimizer, Dtype stored) {
  if (moment_dtype(optimizer, stored) != Dtype::u8) return 0;
  return scales(piece) * moments(optimizer) * size_of(Dtype::f32);
}

// Of how many elements slices must be multiples, so that no block of moments is cut.
inline std::int64_t slice_multiple(const std::vector<ParameterRule>& rules) {
  const auto blocks = [](const ParameterRule& rule) { return moment_format(rule.optimizer) == MomentFormat::block8; };
  return std::ranges::any_of(rules, blocks) ? kStateBlock : 1;
}

inline constexpr int kMomentArrays = kMaxMoments * kMomentFormats;

// All of them; the moments of one format follow each other.
constexpr std::array<MomentArray, kMomentArrays> moment_arrays() {
  std::array<MomentArray, kMomentArrays> arrays;
  for (int i = 0; i < kMomentArrays; ++i)
    arrays[static_cast<std::size_t>(i)] = {i % kMaxMoments, static_cast<MomentFormat>(i / kMaxMoments)};
  return arrays;
}

// What the optimizer's moment of that number is, in PyTorch's word: two that have one name in optimizers of the same
// state have one formula.
std::string_view moment_name(const Optimizer& optimizer, int moment);

// Whether what an optimizer of the one name() keeps means the same to one of the other.
bool same_state(std::string_view one, std::string_view other);

}  // namespace zero
