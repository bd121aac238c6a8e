#include "zero/tensor_automatic.h"

#include <ATen/Context.h>
#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cctype>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/text.h"
#include "engine/module_inventory.h"
#include "engine/trained_module.h"
#include "parallel/automatic_cuts.h"
#include "parallel/operator_flow.h"
#include "zero/engine.h"
#include "zero/error.h"

namespace zero {
namespace {

// Of a module and of LibTorch, as they were, at its end.
class AsItWas {
 public:
  AsItWas(const torch::nn::Module& module, const c10::Device& device) {
    add_generator(at::kCPU);
    if (!device.is_cpu()) add_generator(device);
    std::vector<Registered> registered;
    view_of(module)->registered(registered);
    for (const Registered& each : registered)
      each.buffer ? buffers_.emplace_back(each.tensor, each.tensor.clone())
                  : gradients_.emplace_back(each.tensor, each.tensor.grad());
    for (const auto& [parameter, gradient] : gradients_) parameter.mutable_grad() = at::Tensor();
  }
  ~AsItWas() {
    const at::NoGradGuard no_grad;
    for (const auto& [buffer, before] : buffers_) buffer.copy_(before);
    for (const auto& [parameter, gradient] : gradients_) parameter.mutable_grad() = gradient;
    for (auto& [generator, state] : generators_) {
      const std::scoped_lock lock(generator.mutex());
      generator.set_state(state);
    }
  }
  AsItWas(const AsItWas&) = delete;
  AsItWas& operator=(const AsItWas&) = delete;

 private:
  void add_generator(const c10::Device& device) {
    at::Generator generator = at::globalContext().defaultGenerator(device);
    const std::scoped_lock lock(generator.mutex());
    generators_.emplace_back(generator, generator.get_state());
  }

  std::vector<std::pair<at::Generator, at::Tensor>> generators_;
  std::vector<std::pair<at::Tensor, at::Tensor>> buffers_, gradients_;
};

// Of layers that are numbered one; of what is numbered within them each, unless `all` numbers are alike.
std::string kind_of_layer(const ParameterInfo& parameter, bool all) {
  const auto digit = [](char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; };
  std::string kind;
  bool before = false;  // a number's digits
  for (auto at = parameter.name.begin(); at != parameter.name.end(); ++at) {
    const bool number = digit(*at) && (all || kind.find('#') == kind.npos || before);
    if (!number)
      kind += *at;
    else if (!before)
      kind += '#';
    before = number;
  }
  return kind + listed(parameter.shape);
}

// Where what is numbered twice is of many kinds, as experts, it is of one.
std::vector<std::string> kinds_of_layers(const std::vector<ParameterInfo>& parameters) {
  constexpr std::size_t many = 48;
  std::vector<std::string> kinds;
  for (const bool all : {false, true}) {
    kinds.clear();
    for (const ParameterInfo& each : parameters) kinds.push_back(kind_of_layer(each, all));
    if (std::set<std::string>(kinds.begin(), kinds.end()).size() <= many) break;
  }
  return kinds;
}

// What no engine cuts is left whole.
bool can_be_cut(const Inventory& inventory, std::size_t parameter) {
  const auto bounded = [&](const MaxNorms::Table& table) { return table.parameter == static_cast<int>(parameter); };
  return !inventory.tiles.contains(inventory.infos[parameter].name) &&
         std::ranges::none_of(inventory.max_norms, bounded);
}

Inventory inventory_of(const torch::nn::Module& module) {
  const Options options;
  return take_inventory(module, Plan::ddp(), InventoryChoices{options.full_precision, options.units, options.ignored});
}

AxisCuts cuts_of(const torch::nn::Module& module, const Inventory& inventory, const std::vector<std::string>& kinds,
                 int ranks, const std::function<void()>& micro_batch) {
  const AsItWas at_its_end(module, inventory.device);
  OperatorFlow flow(micro_batch);
  std::vector<CutCandidate> candidates;
  std::vector<std::size_t> numbers;
  for (std::size_t i = 0; i < inventory.parameters.size(); ++i) {
    if (!can_be_cut(inventory, i)) continue;
    const at::Tensor& parameter = inventory.parameters[i];
    const at::Tensor& gradient = parameter.grad();
    candidates.push_back(
        {kinds[i], flow.stand_in(parameter), gradient.defined() ? flow.stand_in(gradient) : at::Tensor()});
    numbers.push_back(i);
  }
  AxisCuts cuts(inventory.parameters.size());
  const AxisCuts found = automatic_cuts(flow, candidates, ranks);
  for (std::size_t i = 0; i < found.size(); ++i) cuts[numbers[i]] = found[i];
  return cuts;
}

// Of parameters by name, and of those that are not there by kind.
class ChosenCuts {
 public:
  void add(const ParameterInfo& parameter, const std::optional<TensorCut>& cut) {
    by_name_[parameter.name] = cut;
    const auto [kind, first] = by_kind_.try_emplace(kind_of_layer(parameter, false), cut);
    if (!first && kind->second != cut) kind->second.reset();
  }
  std::optional<TensorCut> operator()(const ParameterInfo& parameter) const {
    if (const auto known = by_name_.find(parameter.name); known != by_name_.end()) return known->second;
    const auto kind = by_kind_.find(kind_of_layer(parameter, false));
    return kind == by_kind_.end() ? std::nullopt : kind->second;
  }

 private:
  std::map<std::string, std::optional<TensorCut>> by_name_, by_kind_;
};

}  // namespace

TensorRule tensor_automatic(torch::nn::Module& module, int ranks, const std::function<void()>& micro_batch) {
  if (!micro_batch) throw ConfigError("tensor_automatic(): no micro-batch: give it a function that runs one");
  if (ranks < 1)
    throw ConfigError("tensor_automatic(): " + std::to_string(ranks) + " ranks: give the tensor axis' size");
  if (ranks == 1) return [](const ParameterInfo&) { return std::optional<TensorCut>(); };
  const Inventory inventory = inventory_of(module);
  const AxisCuts cuts = cuts_of(module, inventory, kinds_of_layers(inventory.infos), ranks, micro_batch);
  ChosenCuts chosen;
  for (std::size_t i = 0; i < cuts.size(); ++i) chosen.add(inventory.infos[i], cuts[i]);
  return chosen;
}

}  // namespace zero
