// Parameters of operators that compute dropped activations again (backwards/activation_window.h): their units are paged
// in, as for any operator.
#pragma once

#include "backwards/activation_memory.h"
#include "units/unit.h"

namespace zero {

class UnitsAgain final : public ParametersAgain {
 public:
  // Of the engine whose micro-batches they are.
  explicit UnitsAgain(UnitOwner& owner) : owner_(owner) {}

  void page_in(std::span<const c10::IValue> arguments) override;
  // On a device, where a thread has several engines, nothing is gathered out of turn: their exchanges go in one order.
  std::optional<std::vector<int>> units(std::span<const c10::IValue> arguments) override;

 private:
  UnitOwner& owner_;
};

}  // namespace zero
