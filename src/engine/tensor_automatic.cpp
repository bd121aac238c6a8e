#include "zero/tensor_automatic.h"

#include <ATen/CPUGeneratorImpl.h>
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
#include "engine/trained_module.h"
#include "parallel/automatic_cuts.h"
#include "parallel/operator_flow.h"
#include "zero/error.h"

namespace zero {
namespace {

// Of a module and of LibTorch, as they were, at its end.
class AsItWas {
 public:
  explicit AsItWas(const std::vector<Registered>& registered) : generator_(at::detail::getDefaultCPUGenerator()) {
    const std::scoped_lock lock(generator_.mutex());
    state_ = generator_.get_state();
    for (const Registered& each : registered)
      each.buffer ? buffers_.emplace_back(each.tensor, each.tensor.clone())
                  : gradients_.emplace_back(each.tensor, each.tensor.grad());
    for (const auto& [parameter, gradient] : gradients_) parameter.mutable_grad() = at::Tensor();
  }
  ~AsItWas() {
    const at::NoGradGuard no_grad;
    for (const auto& [buffer, before] : buffers_)
      if (!buffer.is_meta()) buffer.copy_(before);
    for (const auto& [parameter, gradient] : gradients_) parameter.mutable_grad() = gradient;
    const std::scoped_lock lock(generator_.mutex());
    generator_.set_state(state_);
  }
  AsItWas(const AsItWas&) = delete;
  AsItWas& operator=(const AsItWas&) = delete;

 private:
  at::Generator generator_;
  at::Tensor state_;
  std::vector<std::pair<at::Tensor, at::Tensor>> buffers_, gradients_;
};

// Of layers that are numbered one; of what is numbered within them each.
std::string kind_of_layer(const ParameterInfo& parameter) {
  const auto digit = [](char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; };
  const std::string& name = parameter.name;
  const auto first = std::ranges::find_if(name, digit), behind = std::find_if_not(first, name.end(), digit);
  return std::string(name.begin(), first) + (first == name.end() ? "" : "#") + std::string(behind, name.end()) +
         listed(parameter.shape);
}

// Each once, under its first name.
std::vector<Registered> each_parameter(const std::vector<Registered>& registered) {
  std::vector<Registered> parameters;
  std::set<const c10::TensorImpl*> known;
  for (const Registered& each : registered)
    if (!each.buffer && known.insert(each.tensor.unsafeGetTensorImpl()).second) parameters.push_back(each);
  return parameters;
}

AxisCuts cuts_of(const std::vector<Registered>& registered, const std::vector<Registered>& parameters, int ranks,
                 const std::function<void()>& micro_batch) {
  const AsItWas at_its_end(registered);
  OperatorFlow flow(micro_batch);
  std::vector<CutCandidate> candidates;
  for (const Registered& each : parameters) {
    const at::Tensor& gradient = each.tensor.grad();
    candidates.push_back({kind_of_layer(each.info), flow.stand_in(each.tensor),
                          gradient.defined() ? flow.stand_in(gradient) : at::Tensor()});
  }
  return automatic_cuts(flow, candidates, ranks);
}

// Of parameters by name, and of those that are not there by kind.
class ChosenCuts {
 public:
  void add(const ParameterInfo& parameter, std::optional<std::int64_t> dim) {
    by_name_[parameter.name] = dim;
    const auto [kind, first] = by_kind_.try_emplace(kind_of_layer(parameter), dim);
    if (!first && kind->second != dim) kind->second.reset();
  }
  std::optional<TensorCut> operator()(const ParameterInfo& parameter) const {
    std::optional<std::int64_t> dim;
    if (const auto name = by_name_.find(parameter.name); name != by_name_.end())
      dim = name->second;
    else if (const auto kind = by_kind_.find(kind_of_layer(parameter)); kind != by_kind_.end())
      dim = kind->second;
    return dim ? std::optional(*dim == 0 ? TensorCut::column : TensorCut::row) : std::nullopt;
  }

 private:
  std::map<std::string, std::optional<std::int64_t>> by_name_, by_kind_;
};

TensorRule automatic(const ModuleView& module, int ranks, const std::function<void()>& micro_batch) {
  if (!micro_batch) throw ConfigError("tensor_automatic(): no micro-batch: give it a function that runs one");
  if (ranks < 1)
    throw ConfigError("tensor_automatic(): " + std::to_string(ranks) + " ranks: give the tensor axis' size");
  if (ranks == 1) return [](const ParameterInfo&) { return std::optional<TensorCut>(); };
  std::vector<Registered> registered;
  module.registered(registered);
  const std::vector<Registered> parameters = each_parameter(registered);
  const AxisCuts cuts = cuts_of(registered, parameters, ranks, micro_batch);
  ChosenCuts chosen;
  for (std::size_t i = 0; i < cuts.size(); ++i) chosen.add(parameters[i].info, cuts[i]);
  return chosen;
}

}  // namespace

TensorRule tensor_automatic(torch::nn::Module& module, int ranks, const std::function<void()>& micro_batch) {
  return automatic(*view_of(module), ranks, micro_batch);
}

TensorRule tensor_automatic(const torch::jit::Module& module, int ranks, const std::function<void()>& micro_batch) {
  return automatic(*view_of(module), ranks, micro_batch);
}

}  // namespace zero
