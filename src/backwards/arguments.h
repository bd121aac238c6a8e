// The tensors among what an operator is given or gives.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

namespace zero {

// Calls visit(tensor) for every tensor, an undefined one too.
template <typename Visit>
void for_each_tensor(const c10::IValue& value, const Visit& visit) {
  if (value.isTensor()) {
    visit(value.unsafeToTensorImpl());
  } else if (value.isList()) {
    for (const c10::IValue& item : value.toListRef()) {
      if (!item.isTensor()) break;
      visit(item.unsafeToTensorImpl());
    }
  }
}

// Calls visit(tensor) for every tensor that is defined, of lists with gaps too.
template <typename Visit>
void for_each_defined(const c10::IValue& value, const Visit& visit) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) visit(value.toTensor());
  } else if (value.isTensorList() || value.isOptionalTensorList()) {
    for (const c10::IValue& item : value.toListRef())
      if (item.isTensor() && item.toTensor().defined()) visit(item.toTensor());
  }
}

// The tensors of a value, alone or in a list, become what `change` makes of them.
template <typename Change>
c10::IValue with_tensors(const c10::IValue& value, const Change& change) {
  if (value.isTensor()) return value.toTensor().defined() ? c10::IValue(change(value.toTensor())) : value;
  if (!value.isTensorList() && !value.isOptionalTensorList()) return value;
  const c10::List<c10::IValue> from = value.toList();
  c10::impl::GenericList to(from.elementType());
  for (const c10::IValue& item : from) to.push_back(with_tensors(item, change));
  return to;
}

}  // namespace zero
