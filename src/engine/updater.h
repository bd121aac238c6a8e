// The optimizer's state of every unit, and its step over what this rank owns of it.
#pragma once

#include <memory>
#include <vector>

#include "engine/update.h"
#include "state/accounts.h"
#include "state/gradients.h"
#include "state/unit.h"
#include "zero/engine.h"

namespace zero {

class Updater {
 public:
  // `infos` in the order of the layout's parameters.
  Updater(const Layout& layout, const Plan& plan, const Optimizer& optimizer, const Options& options,
          const std::vector<ParameterInfo>& infos, Accounts& accounts);

  // Moments of zero and, where parameters are stored narrower, main weights from the unit's `values`
  // (all of it, accumulation dtype).
  void prepare(Unit& unit, const at::Tensor& values);
  // The same for a unit unfrozen after the start, from its stored parameters.
  void prepare_late(Unit& unit);
  bool prepared(const Unit& unit) const { return static_cast<bool>(states_[index(unit)]); }

  // Updates the unit's parameters that received a gradient on any rank; `scale` goes on gradients.
  void step(Unit& unit, const Gradients& gradients, const std::vector<char>& present, double scale, double lr_factor);

  // The written whole of a unit becomes its main weights, where it differs from them.
  void adopt(Unit& unit);

  // This rank's main weights of a unit; null where the parameters are the main weights themselves.
  const Buffer* main(const Unit& unit) const;
  std::int64_t origin(const Unit& unit) const { return sharded_ ? unit.shard_begin() : 0; }
  std::int64_t length(const Unit& unit) const;
  double learning_rate(double factor) const { return zero::learning_rate(optimizer_) * factor; }

 private:
  struct UnitState {
    Buffer main;
    std::vector<Buffer> moments;
  };
  struct Group {
    double weight_decay;
    double lr_scale;
  };

  static std::size_t index(const Unit& unit) { return static_cast<std::size_t>(unit.index()); }
  UpdateRange range(Unit& unit, const Gradients& gradients, std::int64_t begin, std::int64_t end);

  Optimizer optimizer_;
  bool sharded_;
  std::vector<Group> groups_;        // by parameter
  std::vector<std::int64_t> steps_;  // by parameter: updates so far
  std::vector<std::unique_ptr<UnitState>> states_;
  Accounts& accounts_;
};

}  // namespace zero
