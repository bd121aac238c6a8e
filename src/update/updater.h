// The optimizer's state of every unit, and its step over what this rank owns of it. What the engine's optimizers keep
// element by element lies in blocks of stores. The step of a unit is computed where the model is, unless its state or
// its gradients are on another tier: then by the host. It goes over a piece at once where all of it lies there, else
// stretch by stretch, through buffers of constant size.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "backwards/accounts.h"
#include "device/kernels.h"
#include "gradients/held_gradient.h"
#include "memory/passage.h"
#include "memory/store.h"
#include "memory/unit_stores.h"
#include "partition/routes.h"
#include "units/unit.h"
#include "update/full_tensors.h"
#include "update/held_state.h"
#include "update/optimizer_blocks.h"
#include "update/torch_steps.h"
#include "zero/engine.h"

namespace torch::optim {
class OptimizerOptions;
}

namespace zero {

// What a step takes of a unit.
struct UnitStep {
  Unit* unit = nullptr;
  const HeldGradient* gradient = nullptr;
  FullTensors::Factors factors = {};  // by slot; of those that are updated
  // In place of the unit's own stored parameters, those that this rank updates, one after the other, where the step is
  // computed.
  Block* parameters = nullptr;
};

class Updater {
 public:
  // `rules` in the order of the layout's parameters; what is kept of units that are `staying` is on the device;
  // `gradients` of which they are brought; `parameters` where they are on another tier than the device, else null.
  Updater(const Layout& layout, const Routes& routes, std::vector<ParameterRule> rules, std::uint64_t seed,
          Exchange& exchange, Accounts& accounts, std::vector<char> staying, const UnitStores& gradients,
          const Store* parameters);

  // First moments and, where parameters are stored narrower, what the plan keeps of their remainder, from the
  // unit's `values` (all of it, accumulation dtype).
  void prepare(Unit& unit, const void* values);
  // The same for a unit unfrozen after the start, from its stored parameters.
  void prepare_late(Unit& unit);
  bool prepared(const Unit& unit) const { return static_cast<bool>(states_[index(unit)]); }

  // Whether the device computes its step, beside the host, which computes others'.
  bool beside_host(const Unit& unit) const { return &staging(unit) != &staging_; }

  // The unit is as if it had never been prepared.
  void forget(Unit& unit);

  // What this rank holds of the unit's state, but for the stored parameters; nothing where it is not prepared.
  void each_state(const Unit& unit, const TellState& tell) const;
  // Of a parameter, by its number in the layout, from the next step on; before schedules.
  double lr(int parameter) const;
  void set_lr(int parameter, double lr) { lr_[static_cast<std::size_t>(parameter)] = lr; }
  // Likewise, while no update is under way: one that keeps the same state.
  void set_optimizer(int parameter, const Optimizer& optimizer) {
    rules_[static_cast<std::size_t>(parameter)].optimizer = optimizer;
  }
  // Of one with a TorchOptimizer: what its groups have, but for the rate, in place of what it was made with.
  void set_torch_options(int parameter, std::shared_ptr<const torch::optim::OptimizerOptions> options) {
    torch_options_[static_cast<std::size_t>(parameter)] = std::move(options);
  }

  // How often each parameter was updated.
  const std::vector<std::int64_t>& steps() const { return steps_; }
  void resume(std::uint64_t seed, std::vector<std::int64_t> steps);
  // Writes what follows from the main weights, where there are any.
  void store(Unit& unit);
  // What this rank's elements of an updated parameter in the memory order go on from, of a TorchOptimizer: `read`
  // gives the fields of elements [begin, end).
  using ReadFields = std::function<TorchFields(const Slot& slot, std::int64_t begin, std::int64_t end)>;
  void resume_torch(Unit& unit, const ReadFields& read);

  // The next step of a unit whose gradient is held, counted: of the parameters that received a gradient on any rank;
  // `scale` goes on gradients.
  UnitStep next_step(Unit& unit, const HeldGradient& gradient, const std::vector<char>& present, double scale,
                     double lr_factor);
  // Updates the unit's parameters. Collective where an optimizer works on whole tensors. The passage, of passage(),
  // goes from unit to unit. Calls `done` when this one is updated: at once, or where states pass through buffers, by a
  // later step or finish(), behind those before it. Any one thread.
  void step(Passage& passage, const UnitStep& step, std::function<void()> done);
  // What parts of units are small goes in common.
  Passage passage() { return Passage(staging_, Passage::Turns::joined); }
  // What a passage over the units' stored parameters goes through: they are computed with where they lie, or, on a
  // disk, where the update is.
  Staging& staging() { return homes_ ? *homes_ : staging_; }
  // All steps so far, the last of them that of `latest`, are done, and what they wrote is where it lies.
  void finish(Passage& passage, const Unit& latest) const;

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

 private:
  struct UnitState {
    OptimizerBlocks blocks;
    std::vector<std::unique_ptr<TorchStep>> torch;  // by piece; null for the engine's own optimizers
  };

  static std::size_t index(const Unit& unit) { return static_cast<std::size_t>(unit.index()); }
  const ParameterRule& rule(const Slot& slot) const { return rules_[static_cast<std::size_t>(slot.index)]; }
  Held held(const Unit& unit) const { return routes_.rest(State::optimizer, unit.layout()); }
  // On the host, the model being on a device.
  bool apart() const { return &computing_ != &accounts_.device(); }
  // One of the stores of what its step takes that is on another tier than the device's; null: none is.
  const Store* elsewhere(const Unit& unit) const;
  Device& computing(const Unit& unit) const { return accounts_.computing(tier_of(elsewhere(unit))); }
  static Tier tier_of(const Store* store) { return store == nullptr ? Tier::device : store->tier(); }
  // Where that is computed.
  Staging& staging(const Unit& unit) const;
  void check(const Slot& slot, Dtype stored) const;
  std::int64_t stretch_of(const Staging& staging, std::span<const BlockPart> parts, std::int64_t count) const;
  Block take(const Unit& unit, std::int64_t count, Dtype dtype);
  // Bytes of elements, counted from the first that this rank updates of a unit.
  using PartAt = std::function<BlockPart(std::int64_t first, std::int64_t count)>;
  void prepare_from(Unit& unit, const PartAt& values, Dtype dtype);
  void prepare_weights(const Unit& unit, OptimizerBlocks& blocks, const PartAt& values, Dtype dtype);
  void prepare_moments(const Unit& unit, OptimizerBlocks& blocks);
  void adopt(Unit& unit, OptimizerBlocks& blocks);
  void each_stretch(const Unit& unit, Block& block, std::int64_t begin, std::int64_t count, Dtype dtype, Way way,
                    const std::function<void(void* values, std::int64_t first, std::int64_t count)>& use);
  // All of a unit's elements in a block, and those beside them.
  void each_beside(const Unit& unit, Block& block, Dtype dtype, Way way, const PartAt& others,
                   const std::function<void(void* values, void* others, std::int64_t count)>& use);
  void fill(const Unit& unit, Block& block, std::int64_t begin, std::int64_t count, Dtype dtype, double value);
  UpdateRange range(const UnitStep& step, const Piece& piece, std::int64_t begin, std::int64_t end) const;
  BlockPart stored(const UnitStep& step, std::int64_t begin, std::int64_t end) const;
  void pass(Passage& passage, const UnitStep& step, const std::vector<Piece>& pieces, std::size_t which,
            FullTensors::Weights weights, const FullTensors::Use& use);
  void update_elementwise(Passage& passage, const UnitStep& step, const std::vector<Piece>& owned);
  void update_whole(Passage& passage, const UnitStep& step, const std::vector<Piece>& owned);
  void update_piece(const Unit& unit, std::size_t which, const Optimizer& optimizer, const UpdateFactors& factors,
                    const UpdateRange& range);
  TorchStep& torch_step(const Unit& unit, std::size_t which, const TorchOptimizer& optimizer);
  UpdateFactors factors(const Slot& slot, double scale, double lr_factor) const;

  const Routes& routes_;
  Accounts& accounts_;
  UnitStores stores_;  // of the states
  const UnitStores& gradients_;
  const Store* parameters_;
  Device& computing_;  // the step, but for units that stay
  mutable Staging staging_;
  mutable std::optional<Staging> homes_;  // where the update is computed apart from the model, which has the parameters
  std::uint64_t seed_;
  std::vector<ParameterRule> rules_;       // by parameter
  std::vector<std::optional<double>> lr_;  // likewise, in place of the rule's
  std::vector<std::shared_ptr<const torch::optim::OptimizerOptions>> torch_options_;  // likewise; null: as made
  std::vector<std::int64_t> steps_;                                                   // by parameter: updates so far
  std::vector<std::unique_ptr<UnitState>> states_;
  FullTensors whole_;
};

}  // namespace zero
