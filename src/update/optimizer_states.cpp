#include "update/optimizer_states.h"

#include <utility>

#include "base/elements.h"
#include "units/for_unit.h"
#include "zero/error.h"

namespace zero {

OptimizerStates::OptimizerStates(const Layout& layout, const Routes& routes, std::vector<ParameterRule> rules,
                                 Exchange& exchange, Accounts& accounts, std::vector<char> staying,
                                 const UnitStores& gradients, const Store* parameters)
    : routes_(routes),
      accounts_(accounts),
      rules_(std::move(rules)),
      stores_(accounts.stores(State::optimizer, routes.plan()[State::optimizer].tier,
                              accounts.lasting(Accounts::Arena::states), std::move(staying))),
      sites_(layout.units().size(), stores_, gradients, parameters, accounts),
      states_(layout.units().size()),
      whole_(layout, routes, rules_, exchange, accounts) {
  for (const UnitLayout& unit : layout.units())
    for (const Slot& slot : unit.slots()) check(slot, unit.dtype());
}

void OptimizerStates::check(const Slot& slot, Dtype stored) const {
  const Store* const offloaded = sites_.most().offloaded;
  const Optimizer& optimizer = rule(slot).optimizer;
  const std::string others = "use one of the engine's that go element by element, or keep all states on the device";
  if (sites_.on_host() && full_tensor_work(optimizer))
    throw ConfigError("optimizer " + std::string(name(optimizer)) + " computes steps of whole tensors on the device, " +
                          "and what it takes for them is on tier " + std::string(name(offloaded->tier())),
                      others);
  const auto* const torch = std::get_if<TorchOptimizer>(&optimizer);
  if (torch == nullptr) return;
  if (accumulation(stored) != stored && routes_.plan().remainder(stored) != Remainder::main_weights)
    throw ConfigError("optimizer " + torch->label + " needs main weights, which " +
                      std::string(name(routes_.plan().precision())) + " does not keep");
  if (offloaded != nullptr)
    throw ConfigError("optimizer " + torch->label +
                          " updates parameters by gradients that are in memory, and those of tier " +
                          std::string(name(offloaded->tier())) + " are not",
                      others);
  require_elementwise(*torch);
}

void OptimizerStates::prepare(Unit& unit, const void* values) {
  const Dtype wide = accumulation(unit.layout().dtype());
  Block mine =
      accounts_.borrowed(at_element(values, origin(unit), wide), length(unit) * size_of(wide), Owner::parameter);
  prepare_from(
      unit,
      [&](std::int64_t first, std::int64_t count) {
        return BlockPart{&mine, first * size_of(wide), count * size_of(wide), Access::read};
      },
      wide);
}

// `values`, in `dtype`: what this rank updates of the unit's.
void OptimizerStates::prepare_from(Unit& unit, const PartAt& values, Dtype dtype) {
  auto state = std::make_unique<UnitState>();
  for_unit(unit, "the first optimizer state", [&] {
    prepare_weights(unit, state->blocks, values, dtype);
    prepare_moments(unit, state->blocks);
  });
  whole_.prepare(unit);
  states_[index(unit)] = std::move(state);
}

// Nothing remains of values that are stored already.
void OptimizerStates::prepare_weights(const Unit& unit, OptimizerBlocks& blocks, const PartAt& values, Dtype dtype) {
  const Dtype stored = unit.layout().dtype(), wide = accumulation(stored);
  blocks.origin = origin(unit);
  if (wide == stored) return;
  if (routes_.plan().remainder(stored) == Remainder::main_weights) {
    blocks.main = take(unit, length(unit), wide);
    each_beside(unit, blocks.main, wide, Access::write, values, [&](void* main, const void* from, std::int64_t count) {
      site(unit).computes.run(Convert{from, dtype, main, wide, count});
    });
  }
  if (routes_.plan().remainder(stored) != Remainder::kept) return;
  blocks.rest = take(unit, length(unit), stored);
  if (dtype == stored) return fill(unit, blocks.rest, 0, length(unit), stored, 0);
  each_beside(unit, blocks.rest, stored, Access::write, values, [&](void* rest, const void* from, std::int64_t count) {
    site(unit).computes.run(StartCompensation{from, rest, count});
  });
}

Block OptimizerStates::take(const Unit& unit, std::int64_t count, Dtype dtype) {
  return stores_.of(unit.index()).take(count * size_of(dtype), Owner::optimizer, unit.index());
}

void OptimizerStates::prepare_moments(const Unit& unit, OptimizerBlocks& blocks) {
  const UnitLayout& layout = unit.layout();
  for (const MomentArray& array : moment_arrays()) {
    PackedRanges places(layout, origin(unit), origin(unit) + length(unit),
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
    const Optimizer& optimizer = rule(layout.slot(piece.slot)).optimizer;
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

void OptimizerStates::each_beside(const Unit& unit, Block& block, Dtype dtype, Access way, const PartAt& others,
                                  const std::function<void(void* values, void* others, std::int64_t count)>& use) {
  each_stretch(
      site(unit).staging, length(unit),
      [&](std::int64_t first, std::int64_t count) {
        return std::vector{BlockPart{&block, first * size_of(dtype), count * size_of(dtype), way},
                           others(first, count)};
      },
      [&use](std::span<void* const> at, std::int64_t, std::int64_t count) { use(at[0], at[1], count); });
}

void OptimizerStates::fill(const Unit& unit, Block& block, std::int64_t begin, std::int64_t count, Dtype dtype,
                           double value) {
  each_stretch(
      site(unit).staging, count,
      [&](std::int64_t first, std::int64_t n) {
        return std::vector{BlockPart{&block, (begin + first) * size_of(dtype), n * size_of(dtype), Access::write}};
      },
      [&](std::span<void* const> arrays, std::int64_t, std::int64_t n) {
        if (value == 0) return site(unit).computes.zero(arrays[0], n * size_of(dtype));
        site(unit).computes.run(Fill{arrays[0], dtype, n, value});
      });
}

std::vector<Piece> OptimizerStates::pieces(const Unit& unit) const {
  return unit.layout().pieces_between(origin(unit), origin(unit) + length(unit));
}

void OptimizerStates::prepare_late(Unit& unit) {
  prepare_from(
      unit,
      [&](std::int64_t first, std::int64_t count) {
        return unit.stored({origin(unit) + first, count}, Access::read);
      },
      unit.layout().dtype());
}

bool OptimizerStates::has_main(const Unit& unit) const {
  const auto& state = states_[index(unit)];
  return state && state->blocks.main;
}

bool OptimizerStates::follows(const Unit& unit) const {
  const Dtype dtype = unit.layout().dtype();
  return accumulation(dtype) != dtype && routes_.plan().remainder(dtype) == Remainder::main_weights;
}

TorchStep& OptimizerStates::torch_step(const Unit& unit, std::size_t which, const TorchOptimizer& optimizer) {
  auto& steps = states_[index(unit)]->torch;
  if (steps.size() <= which) steps.resize(which + 1);
  if (!steps[which]) steps[which] = std::make_unique<TorchStep>(optimizer, accounts_, unit.index());
  return *steps[which];
}

void OptimizerStates::adopt(Unit& unit) {
  if (prepared(unit)) for_unit(unit, "what was written", [&] { adopt(unit, states_[index(unit)]->blocks); });
}

void OptimizerStates::adopt(Unit& unit, OptimizerBlocks& blocks) {
  const Dtype stored = unit.layout().dtype();
  Block written = accounts_.borrowed(at_element(unit.full().data, origin(unit), stored), length(unit) * size_of(stored),
                                     Owner::parameter);
  const PartAt parts = [&](std::int64_t first, std::int64_t count) {
    return BlockPart{&written, first * size_of(stored), count * size_of(stored), Access::read};
  };
  if (blocks.rest)
    each_beside(unit, blocks.rest, stored, Access::update, parts, [&](void* rest, const void* now, std::int64_t count) {
      site(unit).computes.run(ResetCompensation{now, rest, count});
    });
  if (blocks.main)
    each_beside(unit, blocks.main, accumulation(stored), Access::update, parts,
                [&](void* main, const void* now, std::int64_t count) {
                  site(unit).computes.run(AdoptWritten{now, stored, main, count});
                });
}

}  // namespace zero
