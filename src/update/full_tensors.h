// The steps of optimizers over whole tensors (Muon, Adafactor, LAMB) for units that ranks hold in parts.
//
// A step of a unit:
//   1. update_moments: each rank updates the moments of its part and writes what the step is computed from.
//   2. That input is gathered; the owner of a tensor computes its step, everybody else has zeros there, and a
//      reduce-scatter brings each rank its part of the steps.
//   3. Norms of a tensor are exact sums over the ranks' parts: one small all-gather of limbs.
//   4. apply_step: each rank moves its weights along its part of the steps.
// A sum with zeros and an exact sum do not depend on how the unit is cut, so neither do the bits.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "backwards/accounts.h"
#include "base/exact_sum.h"
#include "device/kernels.h"
#include "device/square_sums.h"
#include "partition/full_tensor_owners.h"
#include "partition/routes.h"
#include "units/exchange.h"
#include "units/unit.h"
#include "update/state_span.h"
#include "zero/plan.h"

namespace zero {

class FullTensors {
 public:
  FullTensors(const Layout& layout, const Routes& routes, const std::vector<ParameterRule>& rules, Exchange& exchange,
              Accounts& accounts);

  // By slot; none for parameters that received no gradient on any rank.
  using Factors = std::vector<std::optional<UpdateFactors>>;
  using Use = std::function<void(const UpdateRange& range)>;
  enum class Weights : std::uint8_t { kept, moved };
  // What this rank updates of one parameter.
  struct Stretch {
    int slot;
    // Range by range, cut at multiples of kSquareBlock. Of weights that are kept there is no `parameter` where there
    // are main weights.
    std::function<void(Weights weights, const Use& use)> each;
  };
  // Room for the unit, and what this rank keeps of its tensors: zeros, where it has none.
  void prepare(const Unit& unit) { make_room(unit.layout(), units_[static_cast<std::size_t>(unit.index())]); }
  void forget(const Unit& unit);
  // Whether a step of the unit does: on all ranks alike, whatever each of them updates.
  bool exchanges(const Unit& unit) const { return units_[static_cast<std::size_t>(unit.index())].any; }
  void each_state(const Unit& unit, const VisitState& tell) const;

  // `stretches` are of parameters that have a full_tensor_work() and factors, in order. Collective.
  void step(const Unit& unit, const Factors& factors, const std::vector<Stretch>& stretches);

 private:
  struct Norms {
    double weights = 0;
    double step = 0;
  };
  struct Factored {
    Buffer rows, columns;
    std::vector<std::int64_t> row_shape, column_shape;
  };

  const ParameterRule& rule(const Slot& slot) const { return rules_[static_cast<std::size_t>(slot.index)]; }
  bool owns(const Slot& slot) const;
  void make_room(const UnitLayout& unit, const FullTensorUnit& work);
  char* step_at(const Unit& unit, std::int64_t index) const;
  void make_factors(const Slot& slot, Dtype dtype);
  void update_owned_moments(const Unit& unit, const Factors& factors, const std::vector<Stretch>& stretches);
  void compute_owned(const Unit& unit, const Factors& factors);
  at::Tensor step_of(const Slot& slot, const at::Tensor& input, const UpdateFactors& factors);
  void distribute(const Unit& unit);
  void add_norms(const Unit& unit, const Factors& factors, const std::vector<Stretch>& stretches, bool owned,
                 SquareSums& sums) const;
  std::vector<Norms> take_norms(const Unit& unit, const SquareSums& squares) const;
  void exchange_sums(const Unit& unit, const FullTensorUnit& work, Axis over, std::vector<ExactSum>& sums) const;
  // What this rank updates of a unit.
  Shard held(const UnitLayout& unit) const { return routes_.rest(State::optimizer, unit); }
  // What steps_ has of it: that, and the room in which sums are made.
  Slice stepped(const UnitLayout& unit) const;

  const std::vector<ParameterRule>& rules_;
  Exchange& exchange_;
  Accounts& accounts_;
  const Routes& routes_;
  std::vector<FullTensorUnit> units_;
  std::vector<int> owners_;         // by parameter
  std::vector<Factored> factored_;  // by parameter
  Buffer inputs_;                   // of a whole unit; then the steps of this rank's tensors
  Buffer steps_;                    // of what this rank updates, and where they are added up
};

}  // namespace zero
