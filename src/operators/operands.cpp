#include "operators/operands.h"

#include <ATen/core/dispatch/Dispatcher.h>

#include "backwards/unwatched.h"

namespace zero {

UnitSet::UnitSet(std::span<const c10::IValue> arguments) {
  for (const c10::IValue& value : arguments)
    for_each_tensor(value, [&](const c10::TensorImpl* tensor) {
      Unit* const unit = Unit::of(tensor);
      if (unit == nullptr) {
        others_ = others_ || (tensor != c10::UndefinedTensorImpl::singleton() && tensor->dim() > 0);
        return;
      }
      add(unit);
      frozen_ = frozen_ || (!tensor->requires_grad() && unit->frozen(tensor));
    });
}

void UnitSet::add(Unit* unit) {
  for (std::size_t i = 0; i < count_; ++i)
    if (few_[i] == unit) return;
  if (count_ < few_.size()) {
    few_[count_++] = unit;
  } else if (std::find(many_.begin(), many_.end(), unit) == many_.end()) {
    many_.push_back(unit);
  }
}

std::vector<Unit*> UnitSet::all() const {
  std::vector<Unit*> units(few_.begin(), few_.begin() + static_cast<std::ptrdiff_t>(count_));
  units.insert(units.end(), many_.begin(), many_.end());
  return units;
}

bool UnitSet::wide() const {
  const auto wide = [](const Unit* unit) { return unit->layout().dtype() == Dtype::f32; };
  return std::any_of(few_.begin(), few_.begin() + static_cast<std::ptrdiff_t>(count_), wide) ||
         std::ranges::any_of(many_, wide);
}

bool has_unit(const c10::IValue& value) {
  bool found = false;
  for_each_tensor(value, [&](const c10::TensorImpl* tensor) { found = found || Unit::of(tensor) != nullptr; });
  return found;
}

bool composite(const c10::OperatorHandle& op) {
  return op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd);
}

bool writes(const c10::OperatorHandle& op, std::size_t argument) {
  const auto* const alias = op.schema().arguments()[argument].alias_info();
  return alias != nullptr && alias->isWrite();
}

void narrow(std::span<c10::IValue> values, at::ScalarType dtype) {
  const Unwatched unwatched;
  for (c10::IValue& value : values)
    rewrite(value, [&](const at::Tensor& tensor) {
      return tensor.defined() && tensor.scalar_type() == at::kFloat ? tensor.to(dtype) : tensor;
    });
}

std::vector<std::vector<Unit*>> by_owner(const std::vector<Unit*>& units) {
  std::vector<std::vector<Unit*>> groups;
  for (Unit* unit : units) {
    const auto group = std::find_if(groups.begin(), groups.end(),
                                    [&](const std::vector<Unit*>& g) { return g.front()->owner == unit->owner; });
    if (group == groups.end()) {
      groups.push_back({unit});
    } else {
      group->push_back(unit);
    }
  }
  return groups;
}

}  // namespace zero
