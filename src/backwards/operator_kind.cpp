#include "backwards/operator_kind.h"

#include <c10/util/flat_hash_map.h>

#include <array>
#include <memory>
#include <string>
#include <string_view>

namespace zero {
namespace {

bool written(const c10::Argument& argument) {
  const c10::AliasInfo* const alias = argument.alias_info();
  if (alias == nullptr) return false;
  if (alias->isWrite()) return true;
  for (const c10::AliasInfo& inner : alias->containedTypes())
    if (inner.isWrite()) return true;
  return false;
}

bool of_tensors(const c10::Argument& argument) {
  return argument.type()->isSubtypeOf(*c10::TensorType::get()) ||
         argument.type()->isSubtypeOf(*c10::ListType::ofTensors()) ||
         argument.type()->isSubtypeOf(*c10::ListType::ofOptionalTensors());
}

bool only_allocates(std::string_view name) {
  constexpr std::array kNames{"aten::empty",          "aten::empty_like", "aten::empty_strided",
                              "aten::empty_permuted", "aten::new_empty",  "aten::new_empty_strided",
                              "aten::empty_quantized"};
  for (const std::string_view each : kNames)
    if (each == name) return true;
  return false;
}

}  // namespace

OperatorKind::OperatorKind(const c10::OperatorHandle& op) {
  const std::string& name = op.operator_name().name;
  composite = op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd) &&
              !op.hasKernelForDispatchKey(c10::DispatchKey::CPU) && !op.hasKernelForDispatchKey(c10::DispatchKey::CUDA);
  random = op.hasTag(at::Tag::nondeterministic_seeded);
  of_library = std::string_view(name).starts_with("aten::");
  repeatable = of_library && !op.hasTag(at::Tag::inplace_view) && !op.hasTag(at::Tag::nondeterministic_bitwise) &&
               name != "aten::set_" && name != "aten::resize_";
  allocates = only_allocates(name);
  for (const char* const each : {"mm", "conv", "attention", "rnn", "linear"})
    multiplies = multiplies || name.find(each) != name.npos;
  bool aliases = false, others = false;
  for (const c10::Argument& argument : op.schema().arguments()) {
    const bool running = argument.name() == "running_mean" || argument.name() == "running_var";
    statistics = statistics || running;
    writes.push_back(static_cast<char>(running || written(argument)));
    if (argument.name() == "generator") generator = static_cast<int>(writes.size()) - 1;
    if (!of_tensors(argument)) continue;
    (argument.alias_info() != nullptr && writes.back() == 0 ? aliases : others) = true;
  }
  views = aliases && !others;
}

const OperatorKind& OperatorKind::of(const c10::OperatorHandle& op) {
  static thread_local ska::flat_hash_map<c10::OperatorHandle, std::unique_ptr<const OperatorKind>> kinds;
  std::unique_ptr<const OperatorKind>& its = kinds[op];
  if (!its) its = std::make_unique<const OperatorKind>(op);
  return *its;
}

bool draws_nothing(const c10::OperatorHandle& op, std::span<const c10::IValue> arguments) {
  const auto& formal = op.schema().arguments();
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string& name = formal[i].name();
    const bool share = name == "p" || name == "dropout" || name == "dropout_p";
    if (share && arguments[i].isDouble() && arguments[i].toDouble() == 0) return true;
    if ((name == "train" || name == "training") && arguments[i].isBool() && !arguments[i].toBool()) return true;
  }
  return false;
}

}  // namespace zero
