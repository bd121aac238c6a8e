#include "engine/takeover.h"

#include <ATen/MemoryOverlap.h>
#include <torch/nn/modules/container/moduledict.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/embedding.h>

#include <unordered_map>
#include <unordered_set>

#include "comm/dtypes.h"
#include "state/unit.h"
#include "zero/error.h"

namespace zero {
namespace {

using torch::nn::Module;

bool is_container(const Module& module) {
  return dynamic_cast<const torch::nn::SequentialImpl*>(&module) != nullptr ||
         dynamic_cast<const torch::nn::ModuleListImpl*>(&module) != nullptr ||
         dynamic_cast<const torch::nn::ModuleDictImpl*>(&module) != nullptr;
}

bool is_embedding(const Module& module) {
  return dynamic_cast<const torch::nn::EmbeddingImpl*>(&module) != nullptr ||
         dynamic_cast<const torch::nn::EmbeddingBagImpl*>(&module) != nullptr;
}

bool is_norm(const Module& module) {
  return module.name().find("Norm") != std::string::npos;
}

std::string join(const std::string& path, const std::string& name) {
  return path.empty() ? name : path + "." + name;
}

class Collector {
 public:
  Collector(const Plan& plan, const std::function<bool(const ParameterInfo&)>& full_precision)
      : plan_(plan), full_precision_(full_precision) {}

  // `unit` is empty outside of every unit.
  void visit(const Module& module, const std::string& path, const std::string& unit) {
    for (const auto& item : module.named_parameters(/*recurse=*/false)) {
      if (!item.value().defined()) continue;
      add_parameter(item.value(),
                    {join(path, item.key()), item.value().sizes().vec(), is_embedding(module), is_norm(module)},
                    unit.empty() ? (path.empty() ? "model" : path) : unit);
    }
    for (const auto& item : module.named_buffers(/*recurse=*/false))
      if (item.value().defined() && seen_.insert(item.value().unsafeGetTensorImpl()).second)
        inventory_.replicated.push_back(item.value());
    const bool splits = unit.empty() && is_container(module);
    for (const auto& item : module.named_children()) {
      const std::string child = join(path, item.key());
      visit(*item.value(), child, splits && !is_container(*item.value()) ? child : unit);
    }
  }

  Inventory result() {
    if (inventory_.specs.empty()) faults_.push_back("the module has no floating-point parameters");
    if (faults_.empty()) return std::move(inventory_);
    std::string text = "this module cannot be trained:";
    for (const std::string& fault : faults_) text += "\n  - " + fault;
    throw ConfigError(text);
  }

 private:
  void add_parameter(const at::Tensor& parameter, ParameterInfo info, const std::string& unit) {
    if (!seen_.insert(parameter.unsafeGetTensorImpl()).second) return;
    if (!at::isFloatingType(parameter.scalar_type()) && !parameter.is_complex()) {
      inventory_.replicated.push_back(parameter);
      return;
    }
    if (!manageable(parameter, info.name)) return;
    const Dtype own = *dtype_of(parameter.scalar_type());
    const Dtype stored = full_precision_ && full_precision_(info) ? own : plan_.compute_dtype(own);
    inventory_.specs.push_back(
        {info.name, parameter.numel(), stored, parameter.requires_grad(), unit, !info.embedding});
    inventory_.parameters.push_back(parameter);
    inventory_.infos.push_back(std::move(info));
  }

  bool manageable(const at::Tensor& parameter, const std::string& name) {
    const auto refuse = [&](const std::string& why) {
      faults_.push_back("parameter '" + name + "' " + why);
      return false;
    };
    if (parameter.layout() != at::kStrided) return refuse("is sparse: make it dense");
    if (at::has_internal_overlap(parameter) == at::MemOverlap::Yes)
      return refuse("has elements that share memory, as expand() makes them: make it contiguous");
    if (!parameter.device().is_cpu()) return refuse("is not on the CPU: this version pages CPU parameters only");
    if (!dtype_of(parameter.scalar_type()))
      return refuse("has dtype " + std::string(c10::toString(parameter.scalar_type())) +
                    ": fp64, fp32, bf16 and fp16 are supported");
    if (Unit::of(parameter.unsafeGetTensorImpl()) != nullptr)
      return refuse("is already trained by an engine: release() that one first");
    const auto [owner, fresh] = storages_.emplace(parameter.storage().unsafeGetStorageImpl(), name);
    if (!fresh && parameter.numel() > 0)
      return refuse("shares memory with '" + owner->second + "' without being the same tensor: tie them by assignment");
    return true;
  }

  const Plan& plan_;
  const std::function<bool(const ParameterInfo&)>& full_precision_;
  Inventory inventory_;
  std::unordered_set<const void*> seen_;
  std::unordered_map<const void*, std::string> storages_;
  std::vector<std::string> faults_;
};

}  // namespace

Inventory take_inventory(Module& module, const Plan& plan,
                         const std::function<bool(const ParameterInfo&)>& full_precision) {
  Collector collector(plan, full_precision);
  collector.visit(module, "", "");
  return collector.result();
}

}  // namespace zero
