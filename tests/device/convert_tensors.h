// The tensors of an operator's argument.
#pragma once

#include <ATen/core/ivalue.h>
#include <ATen/core/ivalue_inl.h>

#include <optional>
#include <utility>

namespace zero::test::accelerator {

// Each that is defined becomes convert(it), alone or in a list.
template <class Convert>
void convert_tensors(c10::IValue& value, const Convert& convert) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) value = convert(value.toTensor());
  } else if (value.isTensorList()) {
    c10::List<at::Tensor> converted;
    for (const at::Tensor& each : value.toTensorVector()) converted.push_back(each.defined() ? convert(each) : each);
    value = std::move(converted);
  } else if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> converted;
    for (const std::optional<at::Tensor>& each : value.toOptionalTensorList().vec())
      converted.push_back(each && each->defined() ? std::optional(convert(*each)) : each);
    value = std::move(converted);
  }
}

}  // namespace zero::test::accelerator
