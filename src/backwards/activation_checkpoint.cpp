#include <ATen/Context.h>
#include <ATen/Functions.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/Generator.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <utility>

#include "zero/activations.h"
#include "zero/error.h"

namespace zero {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// What an operator's result depends on beside its arguments, on this thread: the state of default generators, and
// autocast as the program has set it.
class Surroundings {
 public:
  explicit Surroundings(c10::Device device) {
    add_generator(c10::kCPU);
    add_autocast(c10::kCPU);
    if (device.is_cpu()) return;
    add_generator(device);
    add_autocast(device.type());
  }

 private:
  friend class Again;
  struct Autocast {
    at::DeviceType device;
    bool enabled, cache;
    at::ScalarType dtype;
    void set() const {
      at::autocast::set_autocast_enabled(device, enabled);
      at::autocast::set_autocast_dtype(device, dtype);
      at::autocast::set_autocast_cache_enabled(cache);
    }
  };

  Surroundings() = default;
  void add_generator(c10::Device device) {
    const at::Generator& generator = at::globalContext().defaultGenerator(device);
    generators_.emplace_back(generator, generator.get_state());
  }
  void add_autocast(at::DeviceType device) {
    autocasts_.push_back({device, at::autocast::is_autocast_enabled(device), at::autocast::is_autocast_cache_enabled(),
                          at::autocast::get_autocast_dtype(device)});
  }

  std::vector<std::pair<at::Generator, at::Tensor>> generators_;
  std::vector<Autocast> autocasts_;
};

// Puts them back for as long as it lives. It is a scope of autocast, as PyTorch's checkpoints enter one.
class Again {
 public:
  explicit Again(const Surroundings& then) {
    at::autocast::increment_nesting();
    for (const auto& [generator, state] : then.generators_) {
      now_.add_generator(generator.device());
      at::Generator(generator).set_state(state);
    }
    for (const auto& each : then.autocasts_) {
      now_.add_autocast(each.device);
      each.set();
    }
  }
  ~Again() {
    for (const auto& each : now_.autocasts_) each.set();
    for (auto& [generator, state] : now_.generators_) generator.set_state(state);
    at::autocast::decrement_nesting();
  }
  Again(const Again&) = delete;
  Again& operator=(const Again&) = delete;

 private:
  Surroundings now_;
};

struct CheckpointedCall final : torch::CustomClassHolder {
  CheckpointedCall(TensorFunction given, c10::Device device) : function(std::move(given)), surroundings(device) {}
  TensorFunction function;
  Surroundings surroundings;
};

struct CheckpointFunction : torch::autograd::Function<CheckpointFunction> {
  // `trains`: makes the results parts of a graph, whatever the inputs are.
  static variable_list forward(AutogradContext* context, const c10::intrusive_ptr<CheckpointedCall>& call,
                               const at::Tensor& /*trains*/, at::TensorList inputs) {
    context->saved_data["call"] = c10::IValue::make_capsule(call);
    context->save_for_backward(inputs.vec());
    variable_list results = call->function(inputs.vec()), others;
    for (const at::Tensor& each : results)
      if (each.defined() && !each.is_floating_point() && !each.is_complex()) others.push_back(each);
    context->mark_non_differentiable(others);
    context->set_materialize_grads(false);
    return results;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    if (at::GradMode::is_enabled())
      throw StateError("a backward with create_graph goes through zero::checkpoint, whose gradients have no graph",
                       "keep the activations of what gradients of gradients go through");
    const auto call = c10::static_intrusive_pointer_cast<CheckpointedCall>(context->saved_data["call"].toCapsule());
    const variable_list given = context->get_saved_variables();
    variable_list inputs;
    for (const at::Tensor& each : given)
      inputs.push_back(each.defined() ? each.detach().set_requires_grad(each.requires_grad()) : each);
    differentiate(computed_again(*call, inputs), gradients);
    variable_list result(2);
    for (const at::Tensor& each : inputs) result.push_back(each.defined() ? each.grad() : at::Tensor());
    return result;
  }

 private:
  static variable_list computed_again(const CheckpointedCall& call, const variable_list& inputs) {
    const Again again(call.surroundings);
    const at::AutoGradMode enabled(true);
    return call.function(inputs);
  }

  static void differentiate(const variable_list& results, const variable_list& gradients) {
    variable_list roots, seeds;
    for (std::size_t i = 0; i < results.size(); ++i) {
      if (!results[i].defined() || !results[i].requires_grad() || !gradients[i].defined()) continue;
      roots.push_back(results[i]);
      seeds.push_back(gradients[i]);
    }
    if (!roots.empty()) torch::autograd::backward(roots, seeds);
  }
};

c10::Device device_of(const std::vector<at::Tensor>& tensors) {
  for (const at::Tensor& each : tensors)
    if (each.defined() && !each.is_cpu()) return each.device();
  return c10::kCPU;
}

}  // namespace

std::vector<at::Tensor> checkpoint_tensors(TensorFunction function, const std::vector<at::Tensor>& inputs) {
  if (!at::GradMode::is_enabled()) return function(inputs);
  const at::Tensor trains = at::empty({0}).requires_grad_();
  return CheckpointFunction::apply(c10::make_intrusive<CheckpointedCall>(std::move(function), device_of(inputs)),
                                   trains, at::TensorList(inputs));
}

}  // namespace zero
