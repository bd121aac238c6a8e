#include "deferred/deferred_operators.h"

#include <ATen/core/jit_type.h>

#include <algorithm>
#include <span>
#include <string_view>

namespace zero::deferred_operators {
namespace {

bool one_of(const Handle& op, std::span<const std::string_view> names) {
  const std::string_view name(op.operator_name().name);
  return name.starts_with("aten::") && std::ranges::find(names, name.substr(6)) != names.end();
}

bool has(const Handle& op, c10::DispatchKey key) {
  return op.hasKernelForDispatchKey(key);
}

}  // namespace

bool only_allocates(const Handle& op) {
  static constexpr std::string_view kNames[] = {"empty",      "empty_strided", "empty_permuted",
                                                "empty_like", "new_empty",     "new_empty_strided"};
  return one_of(op, kNames);
}

bool random(const Handle& op) {
  return op.hasTag(at::Tag::nondeterministic_seeded);
}

bool taken_apart(const Handle& op) {
  static constexpr std::string_view kFilled[] = {"zeros",     "ones",      "full",     "zeros_like", "ones_like",
                                                 "full_like", "new_zeros", "new_ones", "new_full"};
  if (has(op, c10::DispatchKey::CompositeImplicitAutograd)) return true;
  return has(op, c10::DispatchKey::CompositeExplicitAutograd) && (random(op) || one_of(op, kFilled));
}

bool overwrites(const Handle& op) {
  static constexpr std::string_view kNames[] = {"fill_",    "zero_",       "copy_",      "normal_",
                                                "uniform_", "random_",     "bernoulli_", "exponential_",
                                                "cauchy_",  "log_normal_", "geometric_"};
  return one_of(op, kNames);
}

bool copies(const Handle& op) {
  static constexpr std::string_view kNames[] = {"_to_copy", "clone"};
  return one_of(op, kNames);
}

bool is_written(const Handle& op, std::size_t argument) {
  const auto* const alias = op.schema().arguments()[argument].alias_info();
  return alias != nullptr && alias->isWrite();
}

bool looks_only(const Handle& op) {
  if (op.hasTag(at::Tag::inplace_view)) return true;
  const auto& returns = op.schema().returns();
  return !returns.empty() && std::ranges::all_of(returns, [](const c10::Argument& each) {
    return each.alias_info() != nullptr && !each.alias_info()->isWrite();
  });
}

bool gives_tensors(const Handle& op) {
  return std::ranges::all_of(op.schema().returns(), [](const c10::Argument& each) {
    return each.type()->isSubtypeOf(*c10::TensorType::get()) || each.type()->isSubtypeOf(*c10::ListType::ofTensors());
  });
}

bool needs_values(const Handle& op) {
  return op.hasTag(at::Tag::data_dependent_output) || op.hasTag(at::Tag::dynamic_output_shape);
}

}  // namespace zero::deferred_operators
