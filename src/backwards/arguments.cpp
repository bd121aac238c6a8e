#include "backwards/arguments.h"

namespace zero {

c10::IValue with_tensors(const c10::IValue& value, const std::function<at::Tensor(const at::Tensor&)>& change) {
  if (value.isTensor()) return value.toTensor().defined() ? c10::IValue(change(value.toTensor())) : value;
  if (!value.isTensorList() && !value.isOptionalTensorList()) return value;
  const c10::List<c10::IValue> from = value.toList();
  c10::impl::GenericList to(from.elementType());
  for (const c10::IValue& item : from) to.push_back(with_tensors(item, change));
  return to;
}

}  // namespace zero
