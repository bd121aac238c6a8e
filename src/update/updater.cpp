#include "update/updater.h"

#include <algorithm>
#include <initializer_list>
#include <limits>
#include <utility>

#include "base/elements.h"
#include "base/half.h"
#include "base/random.h"
#include "units/for_unit.h"
#include "zero/error.h"

namespace zero {

Updater::Updater(const Layout& layout, const Routes& routes, std::vector<ParameterRule> rules, std::uint64_t seed,
                 Exchange& exchange, Accounts& accounts, std::vector<char> staying, const UnitStores& gradients,
                 const Store* parameters)
    : routes_(routes),
      states_(layout, routes, std::move(rules), exchange, accounts, std::move(staying), gradients, parameters),
      seed_(seed),
      lr_(states_.parameters()),
      torch_options_(states_.parameters()),
      steps_(states_.parameters()) {}

// But for what lies in blocks.
UpdateRange Updater::range(const UnitStep& step, const Piece& piece, std::int64_t begin, std::int64_t end) const {
  const UnitLayout& layout = step.unit->layout();
  const Dtype dtype = layout.dtype(), wide = accumulation(dtype);
  UpdateRange range;
  range.dtype = dtype;
  range.count = end - begin;
  range.first = begin - layout.slot(piece.slot).begin;
  range.in_block = begin % kStateBlock;
  range.narrow_gradient = step.gradient->dtype() != wide;
  if (dtype != wide) range.remainder = routes_.plan().remainder(dtype);
  return range;
}

// The parameters, to be updated: read, but where they follow from main weights.
BlockPart Updater::stored(const UnitStep& step, std::int64_t begin, std::int64_t end) const {
  const Access way = states_.follows(*step.unit) ? Access::write : Access::update;
  if (step.parameters == nullptr) return step.unit->stored({begin, end - begin}, way);
  const std::int64_t size = size_of(step.unit->layout().dtype());
  return {step.parameters, (begin - states_.origin(*step.unit)) * size, (end - begin) * size, way};
}

// Elements that go through a buffer at once, of `count` that have these parts.
std::int64_t Updater::stretch_of(const Staging& staging, std::span<const BlockPart> parts, std::int64_t count) const {
  std::int64_t bytes = 0, brought = 0;
  for (const BlockPart& part : parts) {
    if (staging.reachable(part)) continue;
    bytes += part.bytes;
    ++brought;
  }
  if (bytes == 0) return std::numeric_limits<std::int64_t>::max();
  return staging.shape().elements_of(count, bytes, brought);
}

// `use` sees all of the piece at once, in place, or by the end of the passage stretch by stretch, cut where blocks of
// moments are, and where what this rank has of the unit lies on pages.
void Updater::pass(StagedPass& passage, const UnitStep& step, const std::vector<Piece>& pieces, std::size_t which,
                   FullTensors::Weights weights, const FullTensors::Use& use) {
  const Piece& piece = pieces[which];
  const Unit& unit = *step.unit;
  OptimizerBlocks& blocks = states_.blocks(unit);
  const Dtype dtype = unit.layout().dtype();
  const Optimizer& optimizer = states_.rule(unit.layout().slot(piece.slot)).optimizer;
  const auto parts_between = [&](std::int64_t begin, std::int64_t end) {
    UpdateParts parts = parts_of(blocks, optimizer, dtype, piece, which, begin, end);
    parts.gradient = step.gradient->part({begin, end - begin});
    parts.parameter = stored(step, begin, end);
    if (weights == FullTensors::Weights::kept) parts.keep_weights();
    return parts.all();
  };
  const std::int64_t most =
      stretch_of(passage.staging(), parts_between(piece.begin, piece.end), piece.end - piece.begin);
  for (std::int64_t begin = piece.begin, end = piece.end; begin < piece.end; begin = end) {
    const std::int64_t room = most - (begin - blocks.origin) % most;
    end = states_.site(unit).offloaded == nullptr || room > piece.end - begin ? piece.end : begin + room;
    passage.pass(parts_between(begin, end),
                 [use, stretch = range(step, piece, begin, end)](std::span<void* const> arrays) mutable {
                   place(stretch, arrays);
                   use(stretch);
                 });
  }
}

double Updater::lr(int parameter) const {
  const auto i = static_cast<std::size_t>(parameter);
  const ParameterRule& rule = states_.rule(parameter);
  return lr_[i].value_or(learning_rate(rule.optimizer) * rule.lr_scale);
}

UpdateFactors Updater::factors(const Slot& slot, double scale, double lr_factor) const {
  const auto parameter = static_cast<std::size_t>(slot.index);
  const ParameterRule& rule = states_.rule(slot);
  const std::int64_t step = steps_[parameter];
  const std::uint64_t stream = derived(seed_, static_cast<std::uint64_t>(slot.index));
  return {
      .scale = scale,
      .lr = lr_[parameter] ? *lr_[parameter] * lr_factor : learning_rate(rule.optimizer) * lr_factor * rule.lr_scale,
      .step = step,
      .seed = derived(stream, static_cast<std::uint64_t>(step))};
}

UnitStep Updater::next_step(Unit& unit, const HeldGradient& gradient, const std::vector<char>& present, double scale,
                            double lr_factor) {
  const std::vector<Slot>& slots = unit.layout().slots();
  UnitStep step{.unit = &unit, .gradient = &gradient, .factors = FullTensors::Factors(slots.size())};
  for (std::size_t i = 0; i < slots.size(); ++i) {
    if (!present[static_cast<std::size_t>(slots[i].index)]) continue;
    ++steps_[static_cast<std::size_t>(slots[i].index)];
    step.factors[i] = factors(slots[i], scale, lr_factor);
  }
  return step;
}

void Updater::update_piece(const Unit& unit, std::size_t which, const Optimizer& optimizer,
                           const UpdateFactors& factors, const UpdateRange& range) {
  const auto* const torch = std::get_if<TorchOptimizer>(&optimizer);
  if (torch == nullptr) return states_.site(unit).computes.run(Update{optimizer, factors, range});
  const Piece piece = states_.pieces(unit)[which];
  const Slot& slot = unit.layout().slot(piece.slot);
  states_.torch_step(unit, which, *torch)
      .run(factors, range, torch_options_[static_cast<std::size_t>(slot.index)].get());
}

void Updater::step(StagedPass& passage, const UnitStep& step, std::function<void()> done) {
  const Unit& unit = *step.unit;
  const std::vector<Piece> owned = states_.pieces(unit);
  std::optional<StagedPass> here;
  if (overlaps_host(unit)) here.emplace(states_.site(unit).staging);
  StagedPass& through = here ? *here : passage;
  for_unit(unit, "the update", [&] {
    update_elementwise(through, step, owned);
    update_whole(through, step, owned);
    if (here) here->finish();
  });
  through.then(std::move(done));
}

void Updater::finish(StagedPass& passage, const Unit& latest) const {
  for_unit(latest, "the update", [&] { passage.finish(); });
}

// A passage is one at a time; and what it ends is published before anything of the unit's is exchanged, on the ranks
// that update none of it too.
void Updater::update_whole(StagedPass& passage, const UnitStep& step, const std::vector<Piece>& owned) {
  const UnitLayout& layout = step.unit->layout();
  std::vector<FullTensors::Stretch> whole;
  for (std::size_t which = 0; which < owned.size(); ++which) {
    const Piece& piece = owned[which];
    const auto slot = static_cast<std::size_t>(piece.slot);
    if (!step.factors[slot] || !full_tensor_work(states_.rule(layout.slots()[slot]).optimizer)) continue;
    whole.push_back({piece.slot, [&, which](FullTensors::Weights weights, const FullTensors::Use& use) {
                       StagedPass own(states_.site(*step.unit).staging);
                       pass(own, step, owned, which, weights, use);
                       own.finish();
                     }});
  }
  if (states_.whole().exchanges(*step.unit)) passage.finish();
  states_.whole().step(*step.unit, step.factors, whole);
}

// Factors are the passage's to keep: it goes on when this is over.
void Updater::update_elementwise(StagedPass& passage, const UnitStep& step, const std::vector<Piece>& owned) {
  const Unit& unit = *step.unit;
  for (std::size_t which = 0; which < owned.size(); ++which) {
    const auto slot = static_cast<std::size_t>(owned[which].slot);
    const Optimizer& optimizer = states_.rule(unit.layout().slots()[slot]).optimizer;
    if (!step.factors[slot] || full_tensor_work(optimizer)) continue;
    pass(passage, step, owned, which, FullTensors::Weights::moved,
         [this, &unit, &optimizer, which, f = *step.factors[slot]](const UpdateRange& range) {
           update_piece(unit, which, optimizer, f, range);
         });
  }
}

void Updater::resume(std::uint64_t seed, std::vector<std::int64_t> steps) {
  seed_ = seed;
  steps_ = std::move(steps);
}

void Updater::resume_torch(Unit& unit, const ReadFields& read) {
  const std::vector<Piece> owned = states_.pieces(unit);
  for (std::size_t which = 0; which < owned.size(); ++which) {
    const Piece& piece = owned[which];
    const Slot& slot = unit.layout().slot(piece.slot);
    const auto* const torch = std::get_if<TorchOptimizer>(&states_.rule(slot).optimizer);
    if (torch == nullptr || steps_[static_cast<std::size_t>(slot.index)] == 0) continue;
    const std::int64_t begin = piece.begin - slot.begin, end = piece.end - slot.begin;
    states_.torch_step(unit, which, *torch)
        .resume(read(slot, begin, end), end - begin, accumulation(unit.layout().dtype()));
  }
}

}  // namespace zero
