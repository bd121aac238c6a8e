#include "partition/building.h"

#include <algorithm>

#include "partition/full_tensor_owners.h"
#include "partition/moments.h"
#include "partition/packed_ranges.h"
#include "partition/routes.h"
#include "partition/staying.h"

namespace zero {
namespace {

bool on_device(const Plan& plan, State state) {
  return plan[state].tier == Tier::device;
}

// What is kept of a unit on a rank, its optimizer's state staying or not.
std::int64_t kept(const Plan& plan, const UnitLayout& unit, const std::vector<ParameterRule>& rules, int rank,
                  bool stays) {
  std::int64_t bytes = 0;
  if (on_device(plan, State::parameter))
    bytes += Routes(plan, rank).rest(State::parameter, unit).count * size_of(unit.dtype());
  if (!unit.trainable()) return bytes;
  for (const Slot& slot : unit.slots())
    bytes += owned_values(rule_of(slot, rules)) * size_of(accumulation(unit.dtype()));
  if (!on_device(plan, State::optimizer) && !stays) return bytes;
  const Shard updated = Routes(plan, rank).rest(State::optimizer, unit);
  return bytes + updated.count * plan.remainder_bytes(unit.dtype()) +
         moment_bytes(unit, updated.begin, updated.end(), rules);
}

std::int64_t building_on(int rank, const Plan& plan, const Layout& layout, const std::vector<ParameterRule>& rules,
                         const Repeats& repeats, const std::vector<std::int64_t>& stay) {
  std::int64_t held = 0, most = 0;
  for (std::size_t i = 0; i < repeats.size(); ++i) {
    const UnitLayout& unit = layout.units()[i];
    held +=
        stay[i] * kept(plan, unit, rules, rank, true) + (repeats[i] - stay[i]) * kept(plan, unit, rules, rank, false);
    most = std::max(most, held + unit.length() * size_of(accumulation(unit.dtype())));
  }
  return most;
}

}  // namespace

std::int64_t moment_bytes(const UnitLayout& unit, std::int64_t begin, std::int64_t end,
                          const std::vector<ParameterRule>& rules) {
  const auto optimizer = [&](const Slot& slot) -> const Optimizer& { return rule_of(slot, rules).optimizer; };
  std::int64_t bytes = 0;
  for (const MomentArray& array : moment_arrays())
    bytes += PackedRanges(unit, begin, end, [&](const Slot& slot) { return array.holds(optimizer(slot)); }).length() *
             size_of(array.dtype(unit.dtype()));
  for (const Piece& piece : unit.pieces_between(begin, end))
    bytes += scale_bytes(piece, optimizer(unit.slot(piece.slot)), unit.dtype());
  return bytes;
}

bool uniform_moments(const std::vector<ParameterRule>& rules) {
  if (slice_multiple(rules) > 1) return false;
  return std::ranges::all_of(rules, [&](const ParameterRule& rule) {
    return moments(rule.optimizer) == moments(rules.front().optimizer) &&
           moment_format(rule.optimizer) == moment_format(rules.front().optimizer);
  });
}

std::int64_t building_bytes(const Plan& plan, const Layout& layout, const std::vector<ParameterRule>& rules,
                            const Repeats& repeats, std::int64_t staging) {
  const int ranks = uniform_moments(rules) ? 1 : layout.ranks();
  const std::vector<std::int64_t> stay = staying(plan, layout, rules, repeats);
  std::int64_t most = 0;
  for (int rank = 0; rank < ranks; ++rank) most = std::max(most, building_on(rank, plan, layout, rules, repeats, stay));
  return most + staging;
}

}  // namespace zero
