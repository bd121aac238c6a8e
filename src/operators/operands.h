// What an operator is given: the units among its tensors, and tensors in other dtypes in their place.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/util/ArrayRef.h>

#include <algorithm>
#include <array>
#include <span>
#include <utility>
#include <vector>

#include "backwards/arguments.h"
#include "units/unit.h"

namespace c10 {
class OperatorHandle;
}

namespace zero {

// The distinct units among an operator's arguments; more than a handful only for fused lists.
class UnitSet {
 public:
  explicit UnitSet(std::span<const c10::IValue> arguments);

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

// Units of several engines may meet in one operator; each pages its own.
std::vector<std::vector<Unit*>> by_owner(const std::vector<Unit*>& units);

bool has_unit(const c10::IValue& value);

// Whether the operator consists of others, for the dispatcher too.
bool composite(const c10::OperatorHandle& op);

// Whether the operator writes its argument of that number.
bool writes(const c10::OperatorHandle& op, std::size_t argument);

// Gives change(tensor) the place of each tensor of a value, alone or in a list.
template <typename Change>
void rewrite(c10::IValue& value, const Change& change) {
  if (value.isTensor()) {
    value = change(value.toTensor());
  } else if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& item : value.toTensorVector()) list.push_back(change(item));
    value = std::move(list);
  }
}

// Tensors in fp32 become `dtype`. Units have to be resident.
void narrow(std::span<c10::IValue> values, at::ScalarType dtype);

}  // namespace zero
