// Optimizers that need more of a tensor than a rank's part of it: what they exchange, and who computes. No torch.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "partition/repeated.h"
#include "zero/dtype.h"
#include "zero/layout.h"
#include "zero/optimizer.h"

namespace zero {

// How a step over whole tensors is made.
struct FullTensorWork {
  bool owner = false;   // one rank computes it from an input of every element, gathered
  bool narrow = false;  // that input is bf16
  bool norms = false;   // it takes the norms of the weights and, where nobody owns it, of itself
};
// None for optimizers that go element by element.
std::optional<FullTensorWork> full_tensor_work(const Optimizer& optimizer);

// How often a step of a parameter goes over what is kept of it.
int passes(const Optimizer& optimizer);

// A tensor as a matrix.
struct Matrix {
  std::int64_t rows = 1;
  std::int64_t columns = 1;
};
// Muon's: everything behind the first dimension in one.
Matrix hidden_shape(const std::vector<std::int64_t>& shape);

// Shapes of the means over columns and over rows that stand for the squares of a tensor of that shape (Adafactor).
struct FactorShapes {
  std::vector<std::int64_t> rows, columns;
};
FactorShapes factor_shapes(const std::vector<std::int64_t>& shape);

// Values that the owner keeps of a parameter.
std::int64_t owned_values(const ParameterRule& rule);

// The whole work of one unit.
struct FullTensorUnit {
  bool any = false;
  bool owned = false;       // some of it has an owner
  std::vector<int> normed;  // slots with norms
  Dtype wire = Dtype::f32;  // of inputs and of the steps that owners send
};
FullTensorUnit full_tensor_unit(const UnitLayout& unit, const std::vector<ParameterRule>& rules);

// The owner of each parameter, -1 without: unit by unit, since they are exchanged so, the costliest first, each to the
// rank that has least of this unit, then least of all. Frozen units come last.
std::vector<int> owners(const Layout& layout, const std::vector<ParameterRule>& rules);
// Tells of each that has an owner, in this order; of all occurrences of a unit.
void each_owner(const Layout& layout, const std::vector<ParameterRule>& rules, const Repeats& repeats,
                const std::function<void(const UnitLayout&, const Slot&, int owner)>& tell);

// Memory that the exchange of the unit needs, in bytes: the inputs of the whole unit, and the steps of what a rank
// holds of it, `held` elements.
std::int64_t input_bytes(const UnitLayout& unit, const FullTensorUnit& work);
std::int64_t step_bytes(const UnitLayout& unit, const FullTensorUnit& work, std::int64_t held);
// What a rank tells of norms: two exact sums a slot.
std::int64_t norm_words(const FullTensorUnit& work);

}  // namespace zero
