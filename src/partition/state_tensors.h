// Which tensors the state of an engine has, and whether others are the same. No torch.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "partition/element_order.h"
#include "zero/layout.h"
#include "zero/optimizer.h"
#include "zero/plan.h"
#include "zero/state.h"

namespace zero {

// What a parameter's value is, rather than what an optimizer keeps beside it.
bool is_value(StateKind kind);
// What a state may have, or not.
bool may_be_left_out(StateKind kind);

// Of a parameter that has state of its optimizer, or (`kept` false) none: frozen, or of no elements. Without those of a
// TorchOptimizer.
std::vector<StateTensor> state_tensors(const UnitLayout& unit, const Slot& slot, const ParameterRule& rule,
                                       const ElementOrder& order, const Plan& plan, bool kept);

// What an engine can take of one parameter.
struct ExpectedParameter {
  std::string name;
  std::string optimizer;                 // name() of what updates it
  bool trainable = true;                 // when the engine was built
  std::vector<StateTensor> plain;        // without state of its optimizer
  std::vector<StateTensor> kept;         // with it
  std::vector<StateTensor> fields = {};  // of a TorchOptimizer, where there was an update
  bool float8 = false;
};

struct StateFit {
  std::vector<char> kept;           // by parameter: whether it comes with state of its optimizer
  std::vector<std::string> faults;  // one sentence each
};
// A parameter that was never updated may come without state of its optimizer, which then begins, or with main weights
// alone; a frozen one may not come at all, and then is as it was. State of an optimizer whose moments mean something
// else is a fault, however many there are. What may_be_left_out() comes or not.
StateFit fit_state(const std::vector<ExpectedParameter>& parameters, const std::vector<StateTensor>& buffers,
                   const std::vector<StateTensor>& given, const StateScalars& scalars);

// In words that are equal where these are.
std::vector<std::string> lines_of(const std::vector<StateTensor>& tensors, const StateScalars& scalars);

}  // namespace zero
