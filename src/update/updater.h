// The optimizer's step over what this rank owns of every unit. That of a unit is computed at its site: where the model
// is, unless its state or its gradients are on another tier: then by the host. It goes over a piece at once where all
// of it lies there, else stretch by stretch, through buffers of constant size.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "backwards/accounts.h"
#include "device/kernels.h"
#include "gradients/held_gradient.h"
#include "memory/staged_pass.h"
#include "memory/store.h"
#include "memory/unit_stores.h"
#include "partition/routes.h"
#include "units/unit.h"
#include "update/full_tensors.h"
#include "update/optimizer_blocks.h"
#include "update/optimizer_states.h"
#include "update/state_span.h"
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

  // What it keeps.
  OptimizerStates& states() { return states_; }
  const OptimizerStates& states() const { return states_; }

  // Whether the device computes its step, beside the host, which computes others'.
  bool overlaps_host(const Unit& unit) const { return states_.sites().overlaps_host(unit.index()); }

  // Of a parameter, by its number in the layout, from the next step on; before schedules.
  double lr(int parameter) const;
  void set_lr(int parameter, double lr) { lr_[static_cast<std::size_t>(parameter)] = lr; }
  // Of one with a TorchOptimizer: what its groups have, but for the rate, in place of what it was made with.
  void set_torch_options(int parameter, std::shared_ptr<const torch::optim::OptimizerOptions> options) {
    torch_options_[static_cast<std::size_t>(parameter)] = std::move(options);
  }

  // How often each parameter was updated.
  const std::vector<std::int64_t>& steps() const { return steps_; }
  void resume(std::uint64_t seed, std::vector<std::int64_t> steps);
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
  void step(StagedPass& passage, const UnitStep& step, std::function<void()> done);
  // What parts of units are small goes in common.
  StagedPass passage() { return StagedPass(states_.sites().most().staging, StagedPass::Turns::joined); }
  // All steps so far, the last of them that of `latest`, are done, and what they wrote is where it lies.
  void finish(StagedPass& passage, const Unit& latest) const;

 private:
  std::int64_t stretch_of(const Staging& staging, std::span<const BlockPart> parts, std::int64_t count) const;
  UpdateRange range(const UnitStep& step, const Piece& piece, std::int64_t begin, std::int64_t end) const;
  BlockPart stored(const UnitStep& step, std::int64_t begin, std::int64_t end) const;
  void pass(StagedPass& passage, const UnitStep& step, const std::vector<Piece>& pieces, std::size_t which,
            FullTensors::Weights weights, const FullTensors::Use& use);
  void update_elementwise(StagedPass& passage, const UnitStep& step, const std::vector<Piece>& owned);
  void update_whole(StagedPass& passage, const UnitStep& step, const std::vector<Piece>& owned);
  void update_piece(const Unit& unit, std::size_t which, const Optimizer& optimizer, const UpdateFactors& factors,
                    const UpdateRange& range);
  UpdateFactors factors(const Slot& slot, double scale, double lr_factor) const;

  const Routes& routes_;
  OptimizerStates states_;
  std::uint64_t seed_;
  std::vector<std::optional<double>> lr_;  // by parameter, in place of the rule's
  std::vector<std::shared_ptr<const torch::optim::OptimizerOptions>> torch_options_;  // likewise; null: as made
  std::vector<std::int64_t> steps_;                                                   // by parameter: updates so far
};

}  // namespace zero
