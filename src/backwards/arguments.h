// The tensors among what an operator is given or gives.
#pragma once

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

}  // namespace zero
