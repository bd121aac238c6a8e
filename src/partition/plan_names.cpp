// The words for a plan's columns.
#include <array>

#include "base/text.h"
#include "zero/error.h"
#include "zero/plan.h"

namespace zero {
namespace {

constexpr std::array<std::string_view, kStates> kStateNames{"parameter", "gradient", "optimizer", "activation"};
constexpr std::array<std::string_view, 3> kPlacementNames{"replicated", "partial", "sharded"};
constexpr std::array<std::string_view, kTiers> kTierNames{"device", "host", "disk"};
constexpr std::array<std::string_view, 3> kKeepNames{"none", "shard", "host"};
constexpr std::array<std::string_view, 10> kWireNames{
    "native", "fp32", "bf16", "fp16", "fp8", "int8", "int4", "int4-hadamard", "int4-differences", "bf16-codes"};

template <class Word, std::size_t N>
std::string_view word(const std::array<std::string_view, N>& names, Word value) {
  const auto i = static_cast<std::size_t>(value);
  return i < N ? names[i] : "?";
}

template <class Word, std::size_t N>
Word value(const std::array<std::string_view, N>& names, std::string_view text, const char* of) {
  for (std::size_t i = 0; i < N; ++i)
    if (names[i] == text) return static_cast<Word>(i);
  throw ConfigError("unknown " + std::string(of) + " " + in_quotes(text),
                    "one of " + joined(std::vector<std::string_view>(names.begin(), names.end()), ", "));
}

}  // namespace

std::string_view name(State state) {
  return word(kStateNames, state);
}
std::string_view name(Placement placement) {
  return word(kPlacementNames, placement);
}
std::string_view name(Tier tier) {
  return word(kTierNames, tier);
}
std::string_view name(Wire wire) {
  return word(kWireNames, wire);
}
std::string_view name(KeptCopy copy) {
  return word(kKeepNames, copy);
}
KeptCopy kept_copy_named(std::string_view text) {
  return value<KeptCopy>(kKeepNames, text, "copy to keep");
}
State state_named(std::string_view text) {
  return value<State>(kStateNames, text, "state");
}
Tier tier_named(std::string_view text) {
  return value<Tier>(kTierNames, text, "tier");
}

}  // namespace zero
