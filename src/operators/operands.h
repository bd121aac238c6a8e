// What an operator is given: the units among its tensors, and tensors in other dtypes in their place.
#pragma once

#include <ATen/core/ivalue.h>
#include <c10/util/ArrayRef.h>

#include <algorithm>
#include <array>
#include <span>
#include <vector>

#include "backwards/arguments.h"
#include "units/unit.h"

namespace c10 {
class OperatorHandle;
}

namespace zero {

struct Cast;

// The distinct units among an operator's arguments; more than a handful only for fused lists.
class UnitSet {
 public:
  explicit UnitSet(c10::ArrayRef<c10::IValue> arguments);

  bool empty() const { return count_ == 0; }
  std::vector<Unit*> all() const;
  Unit* only() const { return count_ == 1 ? few_[0] : nullptr; }
  // Whether some are stored in fp32.
  bool wide() const;
  // Whether a frozen parameter meets a tensor that is none: what a forward does without a graph to show for it.
  bool frozen_forward() const { return frozen_ && others_; }

 private:
  void add(Unit* unit);

  std::array<Unit*, 8> few_{};
  std::size_t count_ = 0;
  std::vector<Unit*> many_;
  bool frozen_ = false;
  bool others_ = false;
};

bool has_unit(const c10::IValue& value);

// What LibTorch has in fp32 alone, or refuses under autocast, which does not compute it in fp32 on all kinds of
// devices: linear algebra but for products, binary cross entropy of probabilities, and an encoder's layer of sequences
// that are padded (nested tensors).
bool only_wide(const c10::OperatorHandle& op, std::span<const c10::IValue> arguments);

// Operators that neither promote their arguments nor are cast by autocast (norms, say) get their 16-bit parameters in
// fp32 when something else among the arguments is fp32 or fp64. The units have to be resident.
bool needs_promotion(const c10::OperatorHandle& op, c10::ArrayRef<c10::IValue> arguments, const Cast& cast);
void promote(const c10::OperatorHandle& op, std::span<c10::IValue> arguments);

// Tensors in fp32 become `dtype`. Units have to be resident.
void narrow(std::span<c10::IValue> values, at::ScalarType dtype);
// Tensors in 16 bits become fp32, but for those that the operator writes, or takes for their dtype alone. Units have to
// be resident.
void widen(const c10::OperatorHandle& op, std::span<c10::IValue> arguments);

}  // namespace zero
