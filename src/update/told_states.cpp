// What is held of an optimizer's state, told by name, and read.
#include "memory/tier_meter.h"
#include "partition/moments.h"
#include "units/for_unit.h"
#include "update/optimizer_states.h"

namespace zero {
namespace {

void tell_of(const BlockPart& part, StateSpan held, const VisitState& tell) {
  if (part.block == nullptr) return;
  held.lies_in(part);
  tell(held);
}

// Of a piece, whose elements are those of `held`.
void tell_of(const UpdateParts& parts, const Optimizer& optimizer, const Piece& piece, const StateSpan& held,
             const VisitState& tell) {
  StateSpan each = held;
  each.kind = StateKind::main_weight;
  tell_of(parts.main, each, tell);
  each.kind = StateKind::remainder;
  tell_of(parts.rest, each, tell);
  StateSpan scale = held;
  scale.begin = piece.begin / kStateBlock - held.slot->begin / kStateBlock;
  scale.end = scale.begin + scales(piece);
  for (std::size_t i = 0; i < kMaxMoments; ++i) {
    each.part = scale.part = moment_name(optimizer, static_cast<int>(i));
    each.kind = StateKind::moment;
    scale.kind = StateKind::scale;
    tell_of(parts.moments[i], each, tell);
    tell_of(parts.scales[i], scale, tell);
  }
}

}  // namespace

void OptimizerStates::forget(Unit& unit) {
  states_[index(unit)].reset();
  whole_.forget(unit);
}

void OptimizerStates::each(const Unit& unit, const VisitState& tell) const {
  const auto& state = states_[index(unit)];
  if (!state) return;
  const Dtype stored = unit.layout().dtype();
  const std::vector<Piece> owned = pieces(unit);
  for (std::size_t which = 0; which < owned.size(); ++which) {
    const Piece& piece = owned[which];
    const Slot& slot = unit.layout().slot(piece.slot);
    const StateSpan of{
        .slot = &slot, .begin = piece.begin - slot.begin, .end = piece.end - slot.begin, .over = held(unit).over};
    const Optimizer& optimizer = rule(slot).optimizer;
    const UpdateParts parts = parts_of(state->blocks, optimizer, stored, piece, which, piece.begin, piece.end);
    tell_of(parts, optimizer, piece, of, tell);
    if (which >= state->torch.size() || !state->torch[which]) continue;
    StateSpan kept = of;
    kept.kind = StateKind::optimizer;
    kept.torch = state->torch[which].get();
    tell(kept);
  }
  whole_.each_state(unit, tell);
}

void OptimizerStates::read_main(const Unit& unit, View to) const {
  const TierMeter::SetupTraffic apart;
  for_unit(unit, "the main weights", [&] { states_[index(unit)]->blocks.main.read(0, to).wait(); });
}

bool OptimizerStates::has_wide(const Unit& unit) const {
  const auto& state = states_[index(unit)];
  return state && (state->blocks.main || state->blocks.rest);
}

// What rounding cut off belongs to the stored parameters, beside which it lies.
void OptimizerStates::read_wide(Unit& unit, View to) const {
  if (has_main(unit)) return read_main(unit, to);
  const TierMeter::SetupTraffic apart;
  const Dtype stored = unit.layout().dtype();
  const std::int64_t bytes = length(unit) * size_of(stored);
  std::vector<char> parameters(static_cast<std::size_t>(bytes)), rest(static_cast<std::size_t>(bytes));
  for_unit(unit, "the parameters", [&] {
    const BlockPart from = unit.stored({origin(unit), length(unit)}, Access::read);
    from.block->read(from.at, {parameters.data(), bytes, Dtype::u8}).wait();
    states_[index(unit)]->blocks.rest.read(0, {rest.data(), bytes, Dtype::u8}).wait();
  });
  UpdateRange range;
  range.parameter = parameters.data();
  range.compensation = rest.data();
  range.dtype = stored;
  range.count = length(unit);
  range.remainder = Remainder::kept;
  run_on_host(ReadWeights{range, to.data});
}

void OptimizerStates::store(Unit& unit) {
  if (!has_main(unit)) return;
  const Dtype dtype = unit.layout().dtype(), wide = accumulation(dtype);
  each_beside(
      unit, states_[index(unit)]->blocks.main, wide, Access::read,
      [&](std::int64_t first, std::int64_t count) {
        return unit.stored({origin(unit) + first, count}, Access::write);
      },
      [&](const void* main, void* to, std::int64_t count) {
        site(unit).computes.run(Convert{main, wide, to, dtype, count});
      });
}

}  // namespace zero
