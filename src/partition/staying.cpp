#include "partition/staying.h"

#include <algorithm>
#include <cmath>

#include "partition/building.h"

namespace zero {
namespace {

// On all ranks that have parts of it.
std::int64_t kept_of(const Plan& plan, const UnitLayout& unit, const std::vector<ParameterRule>& rules) {
  if (!unit.trainable()) return 0;
  return unit.length() * plan.remainder_bytes(unit.dtype()) + moment_bytes(unit, 0, unit.length(), rules);
}

}  // namespace

std::vector<std::int64_t> staying(const Plan& plan, const Layout& layout, const std::vector<ParameterRule>& rules,
                                  const Repeats& repeats) {
  std::vector<std::int64_t> counts(repeats.size()), bytes(repeats.size());
  const Row& row = plan[State::optimizer];
  if (row.tier == Tier::device || row.share == 1) return counts;
  std::int64_t all = 0;
  for (std::size_t i = 0; i < repeats.size(); ++i) {
    bytes[i] = kept_of(plan, layout.units()[i], rules);
    all += repeats[i] * bytes[i];
  }
  std::int64_t room = all - static_cast<std::int64_t>(std::ceil(row.share * static_cast<double>(all)));
  for (std::size_t i = 0; i < repeats.size(); ++i) {
    if (bytes[i] == 0) continue;
    counts[i] = std::min(repeats[i], room / bytes[i]);
    room -= counts[i] * bytes[i];
  }
  return counts;
}

std::vector<char> staying(const Plan& plan, const Layout& layout, const std::vector<ParameterRule>& rules) {
  const std::vector<std::int64_t> counts = staying(plan, layout, rules, Repeats(layout.units().size(), 1));
  return {counts.begin(), counts.end()};
}

}  // namespace zero
