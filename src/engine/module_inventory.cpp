#include "engine/module_inventory.h"

#include <ATen/MemoryOverlap.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/embedding.h>
#include <algorithm>
#include <set>
#include <string>
#include <typeinfo>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/text.h"
#include "deferred/deferred_tensors.h"
#include "device/torch/devices.h"
#include "device/torch/dtypes.h"
#include "engine/module_kinds.h"
#include "engine/trained_module.h"
#include "units/unit.h"
#include "zero/described_module.h"
#include "zero/error.h"
#include "zero/tiled_linear.h"

namespace zero {
namespace {

// `path` is empty, or ends with a dot.
void add(const torch::nn::Module& module, const std::string& path, Tiles& tiles) {
  if (const auto* const layer = dynamic_cast<const TiledLinearImpl*>(&module)) {
    const std::vector<std::int64_t>& borders = layer->borders();
    for (std::size_t k = 0; k + 1 < borders.size(); ++k)
      for (const std::string name : {"weight", "bias"})
        tiles[path + std::to_string(k) + "." + name] = {path + name, borders[k], borders[k + 1] - borders[k],
                                                        borders.back()};
  }
  for (const auto& child : module.named_children()) add(*child.value(), path + child.key() + ".", tiles);
}

}  // namespace

Tiles tiles_of(const torch::nn::Module& module) {
  Tiles tiles;
  add(module, "", tiles);
  return tiles;
}

namespace {

using torch::nn::Module;
using Scripted = torch::jit::Module;

// Whether others than the parameter refer to its memory. A view has a base, which may be its alone.
bool shared(const at::Tensor& parameter) {
  if (parameter.numel() == 0) return false;
  if (!parameter.is_view()) return parameter.storage().use_count() > 1;
  return parameter.storage().use_count() > 2 || parameter._base().use_count() > 1;
}

// Why the parameter has none; empty where it has.
std::string without_values(const at::Tensor& parameter) try {
  if (parameter.has_storage() && !deferred_tensors::deferred(parameter)) static_cast<void>(parameter.storage().data());
  return {};
} catch (const c10::Error& error) {
  return error.what_without_backtrace();
}

// Without namespaces, and without what TORCH_MODULE adds: "zero::(anonymous namespace)::BlockImpl" is "Block".
std::string class_name(const Module& module) {
  std::string name = type_name(module);
  if (traits_of(module) != nullptr) return name;
  const std::size_t scope = name.substr(0, name.find('<')).rfind("::");
  if (scope != std::string::npos) name.erase(0, scope + 2);
  if (name.size() > 4 && name.ends_with("Impl")) name.resize(name.size() - 4);
  return name;
}
std::string class_name(const Scripted& module) {
  return type_name(module);
}

// Each parameter once.
template <class AnyModule>
std::int64_t numel_of(const AnyModule& module, std::unordered_set<const void*>& counted) {
  std::int64_t all = 0;
  for (const auto& [name, parameter] : parameters_of(module))
    if (parameter.defined() && counted.insert(parameter.unsafeGetTensorImpl()).second) all += parameter.numel();
  for (const auto& [name, child] : children_of(module)) all += numel_of(*child, counted);
  return all;
}

class Collector {
 public:
  Collector(const Plan& plan, const InventoryChoices& choices)
      : plan_(plan), choices_(choices), is_unit_(choices.units ? choices.units : units_in_containers()) {}

  template <class AnyModule>
  void visit(const AnyModule& model) {
    visit(model, "", takes(model, "", /*in_container=*/false) ? "model" : "");
    if (choices_.units && !taken_)
      faults_.push_back("Options::units takes no module of it, of those of types " + joined(types_));
  }

  Inventory result() {
    check_memory();
    if (inventory_.specs.empty() && faults_.empty() && refused_.empty())
      faults_.push_back(inventory_.ignored.empty() ? "the module has no floating-point parameters"
                                                   : "Options::ignored takes all of its parameters");
    if (faults_.empty() && refused_.empty()) return std::move(inventory_);
    std::string text = "this module cannot be trained:";
    for (const std::string& fault : faults_) text += "\n  - " + fault;
    for (const auto& [what, why, names] : refused_) text += "\n  - " + all_of(what, names) + " " + why;
    throw ConfigError(text);
  }

 private:
  // `unit` is empty outside of every unit.
  template <class AnyModule>
  void visit(const AnyModule& module, const std::string& path, const std::string& unit) {
    const bool norm = is_norm(module);
    for (const auto& [name, parameter] : parameters_of(module))
      if (parameter.defined())
        add_parameter(parameter, {path_of(path, name), parameter.sizes().vec(), is_embedding(module), norm},
                      unit.empty() ? (path.empty() ? "model" : path) : unit);
    add_max_norms(module);
    add_projections(module);
    for (const auto& [name, buffer] : buffers_of(module))
      if (buffer.defined()) add_buffer({path_of(path, name), buffer, is_persistent(module, name)});
    for (const auto& [name, child] : children_of(module)) {
      const std::string below = path_of(path, name);
      const bool begins = is_tiled(module) || (unit.empty() && takes(*child, below, is_container(module)));
      visit(*child, below, begins ? below : unit);
    }
  }

  template <class AnyModule>
  bool takes(const AnyModule& module, const std::string& path, bool in_container) {
    std::unordered_set<const void*> counted;
    const std::string type = class_name(module);
    types_.insert(type);
    const bool yes = is_unit_({path, type, numel_of(module, counted), in_container, is_container(module)});
    taken_ = taken_ || yes;
    return yes;
  }

  void add_parameter(const at::Tensor& parameter, ParameterInfo info, const std::string& unit) {
    if (!seen_.insert(parameter.unsafeGetTensorImpl()).second) return;
    if (choices_.ignored && choices_.ignored(info)) return inventory_.ignored.push_back(parameter);
    if (!at::isFloatingType(parameter.scalar_type()) && !parameter.is_complex()) {
      if (plain("parameter", info.name, parameter)) add_replicated(inventory_.replicated, {info.name, parameter});
      return;
    }
    if (!manageable(parameter, info.name)) return;
    const Dtype own = *dtype_of(parameter.scalar_type());
    const Dtype stored = choices_.full_precision && choices_.full_precision(info) ? own : plan_.compute_dtype(own);
    inventory_.specs.push_back(
        {info.name, parameter.numel(), stored, parameter.requires_grad(), unit, !info.embedding});
    inventory_.parameters.push_back(parameter);
    inventory_.infos.push_back(std::move(info));
  }

  void add_max_norm_of(const Module& module, const ModuleTraits& traits) {
    if (!traits.embedding || !traits.max_norm) return;
    for (const auto& [name, parameter] : parameters_of(module))
      if (name == "weight") add_max_norm(parameter, *traits.max_norm, traits.norm_type);
  }
  // LibTorch's modules hand them on in fp32.
  template <class Embedding>
  void add_max_norm_of(const Embedding* module) {
    if (module == nullptr || !module->options.max_norm()) return;
    add_max_norm(module->weight, static_cast<float>(*module->options.max_norm()),
                 static_cast<float>(module->options.norm_type()));
  }
  void add_max_norms(const Module& module) {
    if (const ModuleTraits* traits = traits_of(module)) return add_max_norm_of(module, *traits);
    add_max_norm_of(dynamic_cast<const torch::nn::EmbeddingImpl*>(&module));
    add_max_norm_of(dynamic_cast<const torch::nn::EmbeddingBagImpl*>(&module));
  }

  void add_max_norms(const Scripted& module) {
    if (!is_embedding(module)) return;
    const c10::IValue norm = module.attr("max_norm", c10::IValue());
    if (!norm.isNone())
      add_max_norm(module.attr("weight").toTensor(), norm.toDouble(), module.attr("norm_type", 2.0).toDouble());
  }

  // Once a table; a second one's differing norm shows when it is used.
  void add_max_norm(const at::Tensor& weight, double max_norm, double norm_type) {
    const auto& all = inventory_.parameters;
    const auto found = std::ranges::find_if(all, [&](const at::Tensor& each) { return each.is_same(weight); });
    if (found == all.end()) return;
    const int index = static_cast<int>(found - all.begin());
    if (std::ranges::any_of(inventory_.max_norms, [&](const auto& table) { return table.parameter == index; })) return;
    inventory_.max_norms.push_back(
        {index, inventory_.specs[static_cast<std::size_t>(index)].name, weight.size(0), max_norm, norm_type});
  }

  // LibTorch's own forward alone: one of a class that is derived of it may do anything.
  void add_projections(const Module& module) {
    if (typeid(module) != typeid(torch::nn::MultiheadAttentionImpl)) return;
    const auto& attention = static_cast<const torch::nn::MultiheadAttentionImpl&>(module);
    const auto& all = inventory_.parameters;
    for (const at::Tensor& weight : {attention.in_proj_weight, attention.q_proj_weight}) {
      const auto found = std::ranges::find_if(all, [&](const at::Tensor& each) { return each.is_same(weight); });
      if (found != all.end())
        inventory_.projections.push_back(inventory_.specs[static_cast<std::size_t>(found - all.begin())].name);
    }
  }
  void add_projections(const Scripted& /*module*/) {}

  bool refuse(const std::string& what, const std::string& name, const std::string& why) {
    const auto same = [&](const Refused& each) { return each.what == what && each.why == why; };
    auto found = std::ranges::find_if(refused_, same);
    if (found == refused_.end()) found = refused_.insert(refused_.end(), {what, why, {}});
    found->names.push_back(name);
    return false;
  }

  // A sentence for all that are refused for one reason.
  static std::string all_of(const std::string& what, const std::vector<std::string>& names) {
    constexpr std::size_t most = 4;
    if (names.size() == 1) return what + " '" + names.front() + "'";
    std::string text = "each of " + std::to_string(names.size()) + " " + what + "s, ";
    for (std::size_t i = 0; i < std::min(most, names.size()); ++i) text += (i == 0 ? "'" : "', '") + names[i];
    return text + (names.size() > most ? "' and others," : "',");
  }

  // Whether it is dense memory of the device on which the first one was.
  bool plain(const std::string& what, const std::string& name, const at::Tensor& tensor) {
    if (tensor.layout() != at::kStrided) return refuse(what, name, "is sparse: make it dense");
    if (at::has_internal_overlap(tensor) == at::MemOverlap::Yes)
      return refuse(what, name, "has elements that share memory, as expand() makes them: make it contiguous");
    if (!has_devices(tensor.device().type()))
      return refuse(what, name, "is on device '" + tensor.device().str() + "', on which this build does not train");
    if (!std::exchange(on_device_, true)) inventory_.device = tensor.device();
    if (tensor.device() == inventory_.device) return true;
    return refuse(what, name,
                  "is on device '" + tensor.device().str() + "', and others before it on '" + inventory_.device.str() +
                      "': move the whole module by to()");
  }

  // Again under another name, which may be one that is saved.
  void add_buffer(const Replicated& buffer) {
    const auto* const tensor = buffer.tensor.unsafeGetTensorImpl();
    const bool fresh = seen_.insert(tensor).second;
    if (fresh && plain("buffer", buffer.name, buffer.tensor)) buffers_.insert(tensor);
    if (buffers_.contains(tensor)) add_replicated(inventory_.replicated, buffer);
  }

  bool manageable(const at::Tensor& parameter, const std::string& name) {
    const auto refuse = [&](const std::string& why) { return this->refuse("parameter", name, why); };
    if (!plain("parameter", name, parameter)) return false;
    if (!dtype_of(parameter.scalar_type()))
      return refuse("has dtype " + std::string(c10::toString(parameter.scalar_type())) +
                    ": fp64, fp32, bf16 and fp16 are supported");
    if (Unit::of(parameter.unsafeGetTensorImpl()) != nullptr)
      return refuse("is already trained by an engine: release() that one first");
    if (const std::string gone = without_values(parameter); !gone.empty()) return refuse("has no values: " + gone);
    return true;
  }

  // Parameters that lie side by side in one storage that nobody else refers to, as those of a recurrent layer do on a
  // device (flatten_parameters()), are taken as any others.
  void check_memory() {
    std::unordered_map<const void*, std::vector<std::size_t>> by_storage;
    for (std::size_t i = 0; i < inventory_.parameters.size(); ++i)
      if (inventory_.parameters[i].numel() > 0)
        by_storage[inventory_.parameters[i].storage().unsafeGetStorageImpl()].push_back(i);
    for (std::size_t i = 0; i < inventory_.parameters.size(); ++i) {
      const at::Tensor& parameter = inventory_.parameters[i];
      if (parameter.numel() == 0) continue;
      const std::vector<std::size_t>& together = by_storage[parameter.storage().unsafeGetStorageImpl()];
      if (together.size() == 1 && shared(parameter)) {
        refuse("parameter", inventory_.specs[i].name,
               "shares memory with a tensor made of it before, which would keep the old values: a view, a detach(), a "
               "buffer, or the graph of an earlier forward. Let go of it, or clone() it");
      } else if (i != together.front() && !apart(together)) {
        refuse("parameter", inventory_.specs[i].name,
               "shares memory with '" + inventory_.specs[together.front()].name +
                   "' without being the same tensor: tie them by assignment");
      }
    }
  }

  // Whether parameters of one storage, which is theirs alone, have no element in common.
  bool apart(const std::vector<std::size_t>& together) const {
    std::vector<std::pair<std::int64_t, std::int64_t>> places;  // in elements, as all are of one dtype
    for (const std::size_t i : together) {
      const at::Tensor& parameter = inventory_.parameters[i];
      if (parameter.is_view() || parameter.scalar_type() != inventory_.parameters[together.front()].scalar_type())
        return false;
      std::int64_t end = parameter.storage_offset() + 1;
      for (std::int64_t d = 0; d < parameter.dim(); ++d) end += (parameter.size(d) - 1) * parameter.stride(d);
      places.emplace_back(parameter.storage_offset(), end);
    }
    std::ranges::sort(places);
    for (std::size_t i = 1; i < places.size(); ++i)
      if (places[i].first < places[i - 1].second) return false;
    return inventory_.parameters[together.front()].storage().use_count() == together.size();
  }

  const Plan& plan_;
  const InventoryChoices& choices_;
  UnitRule is_unit_;
  bool taken_ = false;           // a module, by it
  std::set<std::string> types_;  // of modules that it was asked about
  Inventory inventory_;
  bool on_device_ = false;  // the inventory's is known
  std::unordered_set<const void*> seen_, buffers_;
  std::vector<std::string> faults_;
  struct Refused {
    std::string what, why;
    std::vector<std::string> names;
  };
  std::vector<Refused> refused_;  // tensors
};

template <class Any>
Inventory collected(const Any& module, const Plan& plan, const InventoryChoices& choices) {
  Collector collector(plan, choices);
  collector.visit(module);
  Inventory inventory = collector.result();
  inventory.module = view_of(module);
  return inventory;
}

}  // namespace

Inventory take_inventory(const Module& module, const Plan& plan, const InventoryChoices& choices) {
  Inventory inventory = collected(module, plan, choices);
  inventory.tiles = tiles_of(module);
  return inventory;
}

Inventory take_inventory(const Scripted& module, const Plan& plan, const InventoryChoices& choices) {
  return collected(module, plan, choices);
}

}  // namespace zero
