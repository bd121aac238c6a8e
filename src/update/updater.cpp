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
namespace {

// Of stores, one of which may be null.
template <class Is>
const Store* first_of(std::initializer_list<const Store*> stores, const Is& is) {
  const auto* const found =
      std::ranges::find_if(stores, [&](const Store* store) { return store != nullptr && is(*store); });
  return found == stores.end() ? nullptr : *found;
}

const Store* elsewhere_of(const Store& states, const Store& gradients, const Store* parameters) {
  return first_of({&states, &gradients, parameters}, [](const Store& store) { return store.tier() != Tier::device; });
}

// Operations go as the disk's store likes them, where there is one.
StagingShape shape_of(const UnitStores& states, const Store& gradients, const Store* parameters, bool on_device) {
  const Store* const slow =
      first_of({&states.below(), &gradients, parameters}, [](const Store& store) { return !store.addressable(); });
  const bool divided = states.here() != nullptr && parameters != nullptr;
  const Tier of_parameters = parameters == nullptr ? Tier::device : parameters->tier();
  return staging_of_update({states.below().tier(), gradients.tier(), of_parameters, divided}, on_device,
                           slow == nullptr ? kCopyBlock : slow->transfer(), slow == nullptr ? 1 : slow->page());
}

}  // namespace

Updater::Updater(const Layout& layout, const Routes& routes, std::vector<ParameterRule> rules, std::uint64_t seed,
                 Exchange& exchange, Accounts& accounts, std::vector<char> staying, const UnitStores& gradients,
                 const Store* parameters)
    : routes_(routes),
      accounts_(accounts),
      stores_(accounts.stores(State::optimizer, routes.plan()[State::optimizer].tier,
                              accounts.lasting(Accounts::Arena::states), std::move(staying))),
      gradients_(gradients),
      parameters_(parameters),
      computing_(accounts.computing(tier_of(elsewhere_of(stores_.below(), gradients.below(), parameters)))),
      staging_(accounts.staging(computing_, shape_of(stores_, gradients.below(), parameters, apart()))),
      seed_(seed),
      rules_(std::move(rules)),
      lr_(rules_.size()),
      torch_options_(rules_.size()),
      steps_(rules_.size()),
      states_(layout.units().size()),
      whole_(layout, routes, rules_, exchange, accounts) {
  if (apart() && parameters == nullptr) homes_.emplace(accounts.staging(accounts.device(), {kCopyBlock}));
  for (const UnitLayout& unit : layout.units())
    for (const Slot& slot : unit.slots()) check(slot, unit.dtype());
}

const Store* Updater::elsewhere(const Unit& unit) const {
  return elsewhere_of(stores_.of(unit.index()), gradients_.of(unit.index()), parameters_);
}

Staging& Updater::staging(const Unit& unit) const {
  return apart() && elsewhere(unit) == nullptr ? *homes_ : staging_;
}

void Updater::check(const Slot& slot, Dtype stored) const {
  const Store* const elsewhere = elsewhere_of(stores_.below(), gradients_.below(), parameters_);
  const Optimizer& optimizer = rule(slot).optimizer;
  const std::string others = "use one of the engine's that go element by element, or keep all states on the device";
  if (apart() && full_tensor_work(optimizer))
    throw ConfigError("optimizer " + std::string(name(optimizer)) + " computes steps of whole tensors on the device, " +
                          "and what it takes for them is on tier " + std::string(name(elsewhere->tier())),
                      others);
  const auto* const torch = std::get_if<TorchOptimizer>(&optimizer);
  if (torch == nullptr) return;
  if (accumulation(stored) != stored && routes_.plan().remainder(stored) != Remainder::main_weights)
    throw ConfigError("optimizer " + torch->label + " needs main weights, which " +
                      std::string(name(routes_.plan().precision())) + " does not keep");
  if (elsewhere != nullptr)
    throw ConfigError("optimizer " + torch->label +
                          " updates parameters by gradients that are in memory, and those of tier " +
                          std::string(name(elsewhere->tier())) + " are not",
                      others);
  require_elementwise(*torch);
}

void Updater::prepare(Unit& unit, const void* values) {
  const Dtype wide = accumulation(unit.layout().dtype());
  Block mine = accounts_.lent(at_element(values, origin(unit), wide), length(unit) * size_of(wide), Owner::parameter);
  prepare_from(
      unit,
      [&](std::int64_t first, std::int64_t count) {
        return BlockPart{&mine, first * size_of(wide), count * size_of(wide), Way::in};
      },
      wide);
}

// `values`, in `dtype`: what this rank updates of the unit's.
void Updater::prepare_from(Unit& unit, const PartAt& values, Dtype dtype) {
  auto state = std::make_unique<UnitState>();
  for_unit(unit, "the first optimizer state", [&] {
    prepare_weights(unit, state->blocks, values, dtype);
    prepare_moments(unit, state->blocks);
  });
  whole_.prepare(unit);
  states_[index(unit)] = std::move(state);
}

// Nothing remains of values that are stored already.
void Updater::prepare_weights(const Unit& unit, OptimizerBlocks& blocks, const PartAt& values, Dtype dtype) {
  const Dtype stored = unit.layout().dtype(), wide = accumulation(stored);
  blocks.origin = origin(unit);
  if (wide == stored) return;
  if (routes_.plan().remainder(stored) == Remainder::main_weights) {
    blocks.main = take(unit, length(unit), wide);
    each_beside(unit, blocks.main, wide, Way::out, values, [&](void* main, const void* from, std::int64_t count) {
      computing(unit).run(Convert{from, dtype, main, wide, count});
    });
  }
  if (routes_.plan().remainder(stored) != Remainder::kept) return;
  blocks.rest = take(unit, length(unit), stored);
  if (dtype == stored) return fill(unit, blocks.rest, 0, length(unit), stored, 0);
  each_beside(unit, blocks.rest, stored, Way::out, values, [&](void* rest, const void* from, std::int64_t count) {
    computing(unit).run(StartCompensation{from, rest, count});
  });
}

Block Updater::take(const Unit& unit, std::int64_t count, Dtype dtype) {
  return stores_.of(unit.index()).take(count * size_of(dtype), Owner::optimizer, unit.index());
}

void Updater::prepare_moments(const Unit& unit, OptimizerBlocks& blocks) {
  const UnitLayout& layout = unit.layout();
  for (const MomentArray& array : moment_arrays()) {
    Runs places(layout, origin(unit), origin(unit) + length(unit),
                [&](const Slot& slot) { return array.holds(rule(slot).optimizer); });
    const Dtype dtype = array.dtype(layout.dtype());
    Block values;
    if (places.length() > 0) {
      values = take(unit, places.length(), dtype);
      fill(unit, values, 0, places.length(), dtype, 0);
    }
    blocks.moments.push_back({array, std::move(places), std::move(values)});
  }
  std::int64_t scales = 0;
  for (const Piece& piece : pieces(unit)) {
    const Optimizer& optimizer = rule(layout.slots()[static_cast<std::size_t>(piece.slot)]).optimizer;
    blocks.scales_of.push_back(scales);
    scales += scale_bytes(piece, optimizer, layout.dtype()) / size_of(Dtype::f32);
    if (first_moment(optimizer) == 0) continue;
    OptimizerBlocks::Moment& moment = blocks.moments[0];
    fill(unit, moment.values, moment.places.at(piece.begin), piece.end - piece.begin,
         moment.array.dtype(layout.dtype()), first_moment(optimizer));
  }
  if (scales == 0) return;
  blocks.scales = take(unit, scales, Dtype::f32);
  fill(unit, blocks.scales, 0, scales, Dtype::f32, 0);
}

// Elements [begin, begin + count) of a block, as many at a time as there is room for; `first` counts from `begin`.
void Updater::each_stretch(const Unit& unit, Block& block, std::int64_t begin, std::int64_t count, Dtype dtype, Way way,
                           const std::function<void(void* values, std::int64_t first, std::int64_t count)>& use) {
  zero::each_stretch(
      staging(unit), count,
      [&](std::int64_t first, std::int64_t n) {
        return std::vector{BlockPart{&block, (begin + first) * size_of(dtype), n * size_of(dtype), way}};
      },
      [&use](std::span<void* const> arrays, std::int64_t first, std::int64_t n) { use(arrays[0], first, n); });
}

void Updater::each_beside(const Unit& unit, Block& block, Dtype dtype, Way way, const PartAt& others,
                          const std::function<void(void* values, void* others, std::int64_t count)>& use) {
  zero::each_stretch(
      staging(unit), length(unit),
      [&](std::int64_t first, std::int64_t count) {
        return std::vector{BlockPart{&block, first * size_of(dtype), count * size_of(dtype), way},
                           others(first, count)};
      },
      [&use](std::span<void* const> at, std::int64_t, std::int64_t count) { use(at[0], at[1], count); });
}

void Updater::fill(const Unit& unit, Block& block, std::int64_t begin, std::int64_t count, Dtype dtype, double value) {
  each_stretch(unit, block, begin, count, dtype, Way::out, [&](void* values, std::int64_t, std::int64_t n) {
    if (value == 0) return computing(unit).zero(values, n * size_of(dtype));
    computing(unit).run(Fill{values, dtype, n, value});
  });
}

std::vector<Piece> Updater::pieces(const Unit& unit) const {
  return unit.layout().pieces_between(origin(unit), origin(unit) + length(unit));
}

void Updater::prepare_late(Unit& unit) {
  prepare_from(
      unit,
      [&](std::int64_t first, std::int64_t count) {
        return unit.stored({origin(unit) + first, count}, Way::in);
      },
      unit.layout().dtype());
}

bool Updater::has_main(const Unit& unit) const {
  const auto& state = states_[index(unit)];
  return state && state->blocks.main;
}

// But for what lies in blocks.
UpdateRange Updater::range(const UnitStep& step, const Piece& piece, std::int64_t begin, std::int64_t end) const {
  const UnitLayout& layout = step.unit->layout();
  const Dtype dtype = layout.dtype(), wide = accumulation(dtype);
  UpdateRange range;
  range.dtype = dtype;
  range.count = end - begin;
  range.first = begin - layout.slots()[static_cast<std::size_t>(piece.slot)].begin;
  range.in_block = begin % kStateBlock;
  range.narrow_gradient = step.gradient->dtype() != wide;
  if (dtype != wide) range.remainder = routes_.plan().remainder(dtype);
  return range;
}

bool Updater::follows(const Unit& unit) const {
  const Dtype dtype = unit.layout().dtype();
  return accumulation(dtype) != dtype && routes_.plan().remainder(dtype) == Remainder::main_weights;
}

// The parameters, to be updated: read, but where they follow from main weights.
BlockPart Updater::stored(const UnitStep& step, std::int64_t begin, std::int64_t end) const {
  const Way way = follows(*step.unit) ? Way::out : Way::both;
  if (step.parameters == nullptr) return step.unit->stored({begin, end - begin}, way);
  const std::int64_t size = size_of(step.unit->layout().dtype());
  return {step.parameters, (begin - origin(*step.unit)) * size, (end - begin) * size, way};
}

// Elements that go through a buffer at once, of `count` that have these parts.
std::int64_t Updater::stretch_of(const Staging& staging, std::span<const BlockPart> parts, std::int64_t count) const {
  std::int64_t bytes = 0, brought = 0;
  for (const BlockPart& part : parts) {
    if (staging.finds(part)) continue;
    bytes += part.bytes;
    ++brought;
  }
  if (bytes == 0) return std::numeric_limits<std::int64_t>::max();
  return staging.shape().elements_of(count, bytes, brought);
}

// `use` sees all of the piece at once, in place, or by the end of the passage stretch by stretch, cut where blocks of
// moments are, and where what this rank has of the unit lies on pages.
void Updater::pass(Passage& passage, const UnitStep& step, const std::vector<Piece>& pieces, std::size_t which,
                   FullTensors::Weights weights, const FullTensors::Use& use) {
  const Piece& piece = pieces[which];
  const Unit& unit = *step.unit;
  OptimizerBlocks& blocks = states_[index(unit)]->blocks;
  const Dtype dtype = unit.layout().dtype();
  const Optimizer& optimizer = rule(unit.layout().slots()[static_cast<std::size_t>(piece.slot)]).optimizer;
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
    end = elsewhere(unit) == nullptr || room > piece.end - begin ? piece.end : begin + room;
    passage.pass(parts_between(begin, end),
                 [use, stretch = range(step, piece, begin, end)](std::span<void* const> arrays) mutable {
                   place(stretch, arrays);
                   use(stretch);
                 });
  }
}

double Updater::lr(int parameter) const {
  const auto i = static_cast<std::size_t>(parameter);
  return lr_[i].value_or(learning_rate(rules_[i].optimizer) * rules_[i].lr_scale);
}

UpdateFactors Updater::factors(const Slot& slot, double scale, double lr_factor) const {
  const auto parameter = static_cast<std::size_t>(slot.index);
  const ParameterRule& rule = rules_[parameter];
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
  if (torch == nullptr) return computing(unit).run(Update{optimizer, factors, range});
  const Piece piece = pieces(unit)[which];
  const Slot& slot = unit.layout().slots()[static_cast<std::size_t>(piece.slot)];
  torch_step(unit, which, *torch).run(factors, range, torch_options_[static_cast<std::size_t>(slot.index)].get());
}

TorchStep& Updater::torch_step(const Unit& unit, std::size_t which, const TorchOptimizer& optimizer) {
  auto& steps = states_[index(unit)]->torch;
  if (steps.size() <= which) steps.resize(which + 1);
  if (!steps[which]) steps[which] = std::make_unique<TorchStep>(optimizer, accounts_, unit.index());
  return *steps[which];
}

void Updater::step(Passage& passage, const UnitStep& step, std::function<void()> done) {
  const Unit& unit = *step.unit;
  const std::vector<Piece> owned = pieces(unit);
  std::optional<Passage> here;
  if (beside_host(unit)) here.emplace(*homes_);
  Passage& through = here ? *here : passage;
  for_unit(unit, "the update", [&] {
    update_elementwise(through, step, owned);
    update_whole(through, step, owned);
    if (here) here->finish();
  });
  through.then(std::move(done));
}

void Updater::finish(Passage& passage, const Unit& latest) const {
  for_unit(latest, "the update", [&] { passage.finish(); });
}

// A passage is one at a time; and what it ends is published before anything of the unit's is exchanged, on the ranks
// that update none of it too.
void Updater::update_whole(Passage& passage, const UnitStep& step, const std::vector<Piece>& owned) {
  const UnitLayout& layout = step.unit->layout();
  std::vector<FullTensors::Stretch> whole;
  for (std::size_t which = 0; which < owned.size(); ++which) {
    const Piece& piece = owned[which];
    const auto slot = static_cast<std::size_t>(piece.slot);
    if (!step.factors[slot] || !full_tensor_work(rule(layout.slots()[slot]).optimizer)) continue;
    whole.push_back({piece.slot, [&, which](FullTensors::Weights weights, const FullTensors::Use& use) {
                       Passage own(staging(*step.unit));
                       pass(own, step, owned, which, weights, use);
                       own.finish();
                     }});
  }
  if (whole_.exchanges(*step.unit)) passage.finish();
  whole_.step(*step.unit, step.factors, whole);
}

// Factors are the passage's to keep: it goes on when this is over.
void Updater::update_elementwise(Passage& passage, const UnitStep& step, const std::vector<Piece>& owned) {
  const Unit& unit = *step.unit;
  for (std::size_t which = 0; which < owned.size(); ++which) {
    const auto slot = static_cast<std::size_t>(owned[which].slot);
    const Optimizer& optimizer = rule(unit.layout().slots()[slot]).optimizer;
    if (!step.factors[slot] || full_tensor_work(optimizer)) continue;
    pass(passage, step, owned, which, FullTensors::Weights::moved,
         [this, &unit, &optimizer, which, f = *step.factors[slot]](const UpdateRange& range) {
           update_piece(unit, which, optimizer, f, range);
         });
  }
}

void Updater::adopt(Unit& unit) {
  if (prepared(unit)) for_unit(unit, "what was written", [&] { adopt(unit, states_[index(unit)]->blocks); });
}

void Updater::adopt(Unit& unit, OptimizerBlocks& blocks) {
  const Dtype stored = unit.layout().dtype();
  Block written = accounts_.lent(at_element(unit.full().data, origin(unit), stored), length(unit) * size_of(stored),
                                 Owner::parameter);
  const PartAt parts = [&](std::int64_t first, std::int64_t count) {
    return BlockPart{&written, first * size_of(stored), count * size_of(stored), Way::in};
  };
  if (blocks.rest)
    each_beside(unit, blocks.rest, stored, Way::both, parts, [&](void* rest, const void* now, std::int64_t count) {
      computing(unit).run(ResetCompensation{now, rest, count});
    });
  if (blocks.main)
    each_beside(unit, blocks.main, accumulation(stored), Way::both, parts,
                [&](void* main, const void* now, std::int64_t count) {
                  computing(unit).run(AdoptWritten{now, stored, main, count});
                });
}

}  // namespace zero
