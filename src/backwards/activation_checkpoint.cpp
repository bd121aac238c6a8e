#include <ATen/Context.h>
#include <ATen/Functions.h>
#include <ATen/OpMathType.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/Generator.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <utility>

#include "backwards/checkpointed_pieces.h"
#include "backwards/partitioned_inputs.h"
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

// A function of pieces, each of which is given inputs of its own and then those that all share.
struct CheckpointedCall final : torch::CustomClassHolder {
  CheckpointedCall(TensorFunction given, std::size_t own_inputs, std::size_t count, c10::Device where)
      : function(std::move(given)), own(own_inputs), pieces(count), surroundings(where) {}

  // `all`: of each piece, and behind them what they share.
  variable_list inputs_of(std::size_t piece, const variable_list& all) const {
    const auto begin = all.begin() + static_cast<std::ptrdiff_t>(piece * own);
    variable_list inputs(begin, begin + static_cast<std::ptrdiff_t>(own));
    inputs.insert(inputs.end(), all.begin() + static_cast<std::ptrdiff_t>(pieces * own), all.end());
    return inputs;
  }

  TensorFunction function;
  std::size_t own, pieces;
  std::vector<std::size_t> results = {};  // how many, of each piece
  Surroundings surroundings;
  // Of which this rank keeps slices, by number of the input.
  std::shared_ptr<PartitionedInputs> partition = nullptr;
  std::map<std::size_t, std::vector<std::int64_t>> sizes = {};
};

// What is kept of inputs; of those that are a program's anyway, all.
variable_list kept(CheckpointedCall& call, variable_list inputs) {
  if (call.partition == nullptr || call.pieces > 1) return inputs;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    at::Tensor& input = inputs[i];
    if (!input.defined() || !input.requires_grad() || input.is_leaf()) continue;
    const at::Tensor slice = call.partition->slice_of(input);
    if (!slice.defined()) continue;
    call.sizes[i] = input.sizes().vec();
    input = slice;
  }
  return inputs;
}

variable_list brought_back(const CheckpointedCall& call, variable_list inputs) {
  for (const auto& [i, sizes] : call.sizes)
    inputs[i] = call.partition->whole_of(inputs[i], sizes).set_requires_grad(true);
  return inputs;
}

// Adds up gradients of what pieces share.
class SharedGradient {
 public:
  void add(const at::Tensor& gradient) {
    if (!gradient.defined()) return;
    dtype_ = gradient.scalar_type();
    if (!sum_.defined())
      sum_ = gradient.to(at::toOpMathType(dtype_));
    else if (sum_.scalar_type() == dtype_)
      sum_.add_(gradient);
    else
      add_in_parts(gradient);
  }
  at::Tensor sum() && { return sum_.defined() ? sum_.to(dtype_) : sum_; }

 private:
  // LibTorch makes a wide copy of what it adds. By columns: a table that is cut over ranks is so by rows.
  void add_in_parts(const at::Tensor& gradient) {
    constexpr std::int64_t parts = 16;
    if (gradient.dim() < 2) return static_cast<void>(sum_.add_(gradient));
    const variable_list into = sum_.chunk(parts, -1), from = gradient.chunk(parts, -1);
    for (std::size_t i = 0; i < into.size(); ++i) into[i].add_(from[i]);
  }

  at::Tensor sum_;
  at::ScalarType dtype_ = at::kFloat;
};

struct CheckpointFunction : torch::autograd::Function<CheckpointFunction> {
  // `trained`: makes the results parts of a graph, whatever the inputs are.
  static variable_list forward(AutogradContext* context, const c10::intrusive_ptr<CheckpointedCall>& call,
                               const at::Tensor& /*trained*/, at::TensorList inputs) {
    context->saved_data["call"] = c10::IValue::make_capsule(call);
    const variable_list all = inputs.vec();
    variable_list results, others;
    const CheckpointedForward trains;
    const PartitionsAtWork partitions;
    for (std::size_t piece = 0; piece < call->pieces; ++piece) {
      variable_list made = call->function(call->inputs_of(piece, all));
      call->results.push_back(made.size());
      std::ranges::move(made, std::back_inserter(results));
    }
    call->partition = partitions.found();
    context->save_for_backward(kept(*call, all));
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
    const variable_list given = brought_back(*call, context->get_saved_variables());
    variable_list result(2);
    std::vector<SharedGradient> sums(given.size() - call->pieces * call->own);
    auto next = gradients.begin();
    for (std::size_t piece = 0; piece < call->pieces; ++piece) {
      const auto end = next + static_cast<std::ptrdiff_t>(call->results[piece]);
      const variable_list made = gradients_of(*call, piece, given, {std::exchange(next, end), end});
      result.insert(result.end(), made.begin(), made.begin() + static_cast<std::ptrdiff_t>(call->own));
      for (std::size_t i = 0; i < sums.size(); ++i) sums[i].add(made[call->own + i]);
    }
    for (SharedGradient& each : sums) result.push_back(std::move(each).sum());
    return result;
  }

 private:
  // Of a piece's inputs.
  static variable_list gradients_of(const CheckpointedCall& call, std::size_t piece, const variable_list& given,
                                    const variable_list& gradients) {
    variable_list inputs = call.inputs_of(piece, given);
    for (at::Tensor& each : inputs)
      if (each.defined()) each = each.detach().set_requires_grad(each.requires_grad());
    differentiate(computed_again(call, inputs), gradients);
    for (at::Tensor& each : inputs)
      if (each.defined()) each = gradient_taken_from(each);
    return inputs;
  }

  // An operator that is recorded within an activation budget may refer to the input for long.
  static at::Tensor gradient_taken_from(const at::Tensor& input) {
    return input.requires_grad() ? std::exchange(input.mutable_grad(), {}) : at::Tensor();
  }

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

std::vector<at::Tensor> checkpoint_pieces(TensorFunction function, const std::vector<std::vector<at::Tensor>>& pieces,
                                          const std::vector<at::Tensor>& shared) {
  std::vector<at::Tensor> inputs;
  for (const std::vector<at::Tensor>& piece : pieces) inputs.insert(inputs.end(), piece.begin(), piece.end());
  inputs.insert(inputs.end(), shared.begin(), shared.end());
  const auto call = c10::make_intrusive<CheckpointedCall>(std::move(function), pieces.front().size(), pieces.size(),
                                                          device_of(inputs));
  if (at::GradMode::is_enabled())
    return CheckpointFunction::apply(call, at::empty({0}).requires_grad_(), at::TensorList(inputs));
  std::vector<at::Tensor> results;
  for (std::size_t piece = 0; piece < pieces.size(); ++piece)
    std::ranges::move(call->function(call->inputs_of(piece, inputs)), std::back_inserter(results));
  return results;
}

std::vector<at::Tensor> checkpoint_tensors(TensorFunction function, const std::vector<at::Tensor>& inputs) {
  return checkpoint_pieces(std::move(function), {inputs}, {});
}

}  // namespace zero
