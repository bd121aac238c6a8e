// Parameters that are cut over a tensor axis: what of them lies in a unit, and what the program sees.
#include <ATen/Functions.h>

#include "backwards/unwatched.h"
#include "deferred/deferred_tensors.h"
#include "units/unit.h"

namespace zero {

// Of the tensor axis rank 0 has the values, too.
void Unit::flatten_first(std::size_t slot, const at::Tensor& place) const {
  if (rank() != 0) return;
  const at::Tensor& parameter = parameters_[slot];
  const at::Tensor all = at::empty(parameter.sizes(), place.options());
  if (cuts_.axis->rank() == 0) {
    if (deferred_tensors::deferred(parameter))
      deferred_tensors::compute_into(parameter, all);
    else
      all.copy_(parameter.detach());
  }
  cuts_.axis->broadcast(all);
  place.copy_(cut(slot) ? cuts_.axis->own(all, *cut(slot)) : all);
}

at::Tensor Unit::own(int slot) const {
  const auto i = static_cast<std::size_t>(slot);
  const at::Tensor& whole = parameters_[i];
  if (!cut(i)) return whole;
  if (adopted_) return places_[i].parameter;
  return cuts_.axis->own(at::empty_strided(whole.sizes(), whole.strides(), whole.options().device(at::kMeta)), *cut(i));
}

at::Tensor Unit::own_gradient(int slot, const at::Tensor& gradient) const {
  if (cuts_.axis == nullptr) return gradient;
  const Unwatched unwatched;
  return sharded::own_gradient(gradient, cut(static_cast<std::size_t>(slot)), cuts_.axis);
}

void Unit::changed() {
  for (const at::Tensor& parameter : parameters_) parameter.unsafeGetTensorImpl()->bump_version();
  for (const Place& place : places_)
    if (cut(place.slot)) cuts_.axis->wrote(place.parameter);
}

at::Tensor Unit::shown(std::size_t slot, const at::Tensor& part) const {
  return cut(slot) ? sharded::parameter(part, *cut(slot), cuts_.axis, layout_.slots()[slot].name) : part;
}

at::Tensor Unit::whole_of(std::size_t slot, const at::Tensor& part) const {
  return cut(slot) ? cuts_.axis->gather(part, *cut(slot)) : part;
}

}  // namespace zero
