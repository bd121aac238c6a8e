// What the optimizer keeps of every unit on this rank: element by element in blocks of stores, and of whole tensors. A
// unit's is computed with at its site, all at once where it lies there, else stretch by stretch, through buffers of
// constant size.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "backwards/accounts.h"
#include "memory/staged_pass.h"
#include "memory/store.h"
#include "memory/unit_stores.h"
#include "partition/routes.h"
#include "units/unit.h"
#include "update/full_tensors.h"
#include "update/optimizer_blocks.h"
#include "update/sites.h"
#include "update/state_span.h"
#include "update/torch_steps.h"

namespace zero {

class OptimizerStates {
 public:
  // `rules` in the order of the layout's parameters; what is kept of units that are `staying` is on the device;
  // `gradients` of which they are brought; `parameters` where they are on another tier than the device, else null.
  OptimizerStates(const Layout& layout, const Routes& routes, std::vector<ParameterRule> rules, Exchange& exchange,
                  Accounts& accounts, std::vector<char> staying, const UnitStores& gradients, const Store* parameters);

  Sites& sites() { return sites_; }
  const Sites& sites() const { return sites_; }
  FullTensors& whole() { return whole_; }
  // Where the unit's update is computed.
  Site& site(const Unit& unit) const { return sites_.of(unit.index()); }
  const ParameterRule& rule(int parameter) const { return rules_[static_cast<std::size_t>(parameter)]; }
  const ParameterRule& rule(const Slot& slot) const { return rule(slot.index); }
  std::size_t parameters() const { return rules_.size(); }
  // Of the same state, while no update is under way.
  void set_optimizer(int parameter, const Optimizer& optimizer) {
    rules_[static_cast<std::size_t>(parameter)].optimizer = optimizer;
  }

  // First moments and, where parameters are stored narrower, what the plan keeps of their remainder, from the
  // unit's `values` (all of it, accumulation dtype).
  void prepare(Unit& unit, const void* values);
  // The same for a unit unfrozen after the start, from its stored parameters.
  void prepare_late(Unit& unit);
  bool prepared(const Unit& unit) const { return static_cast<bool>(states_[index(unit)]); }
  // The unit is as if it had never been prepared.
  void forget(Unit& unit);

  // What this rank holds of the unit's state, but for the stored parameters; nothing where it is not prepared.
  void each(const Unit& unit, const VisitState& tell) const;
  // Writes what follows from the main weights, where there are any.
  void store(Unit& unit);
  // The written whole of a unit becomes its main weights, where it differs from them; a remainder is dropped
  // unless it is less than half a step of what was written, as that of an unchanged weight always is.
  void adopt(Unit& unit);

  // Whether what is stored of the unit's parameters follows from main weights, and is not read by a step.
  bool follows(const Unit& unit) const;
  // False where the parameters are the main weights themselves.
  bool has_main(const Unit& unit) const;
  // Writes this rank's main weights of a unit to `to`, all of them.
  void read_main(const Unit& unit, View to) const;
  // Whether more is known of the weights than the stored parameters have, in main weights or what rounding cut off.
  bool has_wide(const Unit& unit) const;
  // Writes these to the host's memory, as read_main() does, in the accumulation dtype.
  void read_wide(Unit& unit, View to) const;

  std::int64_t origin(const Unit& unit) const { return held(unit).begin; }
  std::int64_t length(const Unit& unit) const { return held(unit).count; }
  // What this rank updates of the unit, in order.
  std::vector<Piece> pieces(const Unit& unit) const;
  // Of a unit that is prepared: what a step takes of it, and a TorchOptimizer's state of a piece.
  OptimizerBlocks& blocks(const Unit& unit) const { return states_[index(unit)]->blocks; }
  TorchStep& torch_step(const Unit& unit, std::size_t which, const TorchOptimizer& optimizer);

 private:
  struct UnitState {
    OptimizerBlocks blocks;
    std::vector<std::unique_ptr<TorchStep>> torch;  // by piece; null for the engine's own optimizers
  };

  static std::size_t index(const Unit& unit) { return static_cast<std::size_t>(unit.index()); }
  Shard held(const Unit& unit) const { return routes_.rest(State::optimizer, unit.layout()); }
  void check(const Slot& slot, Dtype stored) const;
  Block take(const Unit& unit, std::int64_t count, Dtype dtype);
  // Bytes of elements, counted from the first that this rank updates of a unit.
  using PartAt = std::function<BlockPart(std::int64_t first, std::int64_t count)>;
  void prepare_from(Unit& unit, const PartAt& values, Dtype dtype);
  void prepare_weights(const Unit& unit, OptimizerBlocks& blocks, const PartAt& values, Dtype dtype);
  void prepare_moments(const Unit& unit, OptimizerBlocks& blocks);
  void adopt(Unit& unit, OptimizerBlocks& blocks);
  // All of a unit's elements in a block, and those beside them.
  void each_beside(const Unit& unit, Block& block, Dtype dtype, Access way, const PartAt& others,
                   const std::function<void(void* values, void* others, std::int64_t count)>& use);
  void fill(const Unit& unit, Block& block, std::int64_t begin, std::int64_t count, Dtype dtype, double value);

  const Routes& routes_;
  Accounts& accounts_;
  std::vector<ParameterRule> rules_;  // by parameter
  UnitStores stores_;
  Sites sites_;
  std::vector<std::unique_ptr<UnitState>> states_;
  FullTensors whole_;
};

}  // namespace zero
