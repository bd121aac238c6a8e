// What the updater holds, told by name, and taken over from another.
#include "engine/updater.h"
#include "state/flat.h"

namespace zero {

void Updater::forget(Unit& unit) {
  states_[index(unit)].reset();
  whole_.forget(unit);
}

void Updater::each_state(const Unit& unit, const TellState& tell) const {
  const auto& state = states_[index(unit)];
  if (!state) return;
  const Dtype stored = unit.layout().dtype();
  const std::vector<Piece> owned = pieces(unit);
  for (std::size_t which = 0; which < owned.size(); ++which) {
    const Piece& piece = owned[which];
    const Slot& slot = unit.layout().slots()[static_cast<std::size_t>(piece.slot)];
    const HeldState of{
        .slot = &slot, .begin = piece.begin - slot.begin, .end = piece.end - slot.begin, .over = held(unit).over};
    const auto offer = [&](StateKind kind, const Buffer& buffer, Dtype dtype) {
      if (!buffer) return;
      HeldState each = of;
      each.kind = kind;
      each.memory = at_element(buffer.data(), piece.begin - origin(unit), dtype);
      tell(each);
    };
    offer(StateKind::main_weight, state->main, accumulation(stored));
    offer(StateKind::remainder, state->rest, stored);
    each_moment(unit, piece, which, of, tell);
    if (which >= state->torch.size() || !state->torch[which]) continue;
    HeldState kept = of;
    kept.kind = StateKind::optimizer;
    kept.torch = state->torch[which].get();
    tell(kept);
  }
  whole_.each_state(unit, tell);
}

void Updater::each_moment(const Unit& unit, const Piece& piece, std::size_t which, const HeldState& of,
                          const TellState& tell) const {
  UpdateRange range;
  range.dtype = unit.layout().dtype();
  add_moments(range, unit, piece, which);
  for (std::size_t i = 0; i < kMaxMoments; ++i) {
    HeldState each = of;
    each.part = std::to_string(i);
    each.kind = StateKind::moment;
    each.memory = range.moments[i];
    if (each.memory != nullptr) tell(each);
    if (range.scales[i] == nullptr) continue;
    each.kind = StateKind::scale;
    each.begin = piece.begin / kStateBlock - of.slot->begin / kStateBlock;
    each.end = each.begin + scales(piece);
    each.memory = range.scales[i];
    tell(each);
  }
}

void Updater::resume(std::uint64_t seed, std::vector<std::int64_t> steps) {
  seed_ = seed;
  steps_ = std::move(steps);
}

void Updater::resume_torch(Unit& unit, const ReadFields& read) {
  const std::vector<Piece> owned = pieces(unit);
  for (std::size_t which = 0; which < owned.size(); ++which) {
    const Piece& piece = owned[which];
    const Slot& slot = unit.layout().slots()[static_cast<std::size_t>(piece.slot)];
    const auto* const torch = std::get_if<TorchOptimizer>(&rule(slot).optimizer);
    if (torch == nullptr || steps_[static_cast<std::size_t>(slot.index)] == 0) continue;
    const std::int64_t begin = piece.begin - slot.begin, end = piece.end - slot.begin;
    torch_step(unit, which, *torch).resume(read(slot, begin, end), end - begin, accumulation(unit.layout().dtype()));
  }
}

void Updater::store(Unit& unit) {
  const Buffer* const main = this->main(unit);
  if (main == nullptr) return;
  const Dtype dtype = unit.layout().dtype();
  convert(main->data(), accumulation(dtype), unit.stored_at(origin(unit)), dtype, length(unit));
}

}  // namespace zero
