#include "backwards/program_backward.h"

#include <ATen/Functions.h>
#include <ATen/core/VariableHooksInterface.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "backwards/accounts.h"
#include "backwards/autocast.h"
#include "backwards/micro_batch.h"
#include "backwards/running_backward.h"
#include "backwards/unwatched.h"
#include "zero/backward.h"
#include "zero/error.h"

namespace zero {
namespace {

struct ScaledLoss {
  c10::weak_intrusive_ptr<torch::autograd::Node> graph;
  double scale;
};
thread_local std::vector<ScaledLoss> scaled_losses;

double scale_of(const at::Tensor& loss) {
  if (!loss.defined()) return 1;
  for (const ScaledLoss& each : scaled_losses)
    if (each.graph.lock() == loss.grad_fn()) return each.scale;
  return 1;
}

// Of all of them.
double scale_of(at::TensorList losses) {
  std::erase_if(scaled_losses, [](const ScaledLoss& each) { return each.graph.expired(); });
  const double scale = losses.empty() ? 1 : scale_of(losses.front());
  for (const at::Tensor& loss : losses)
    if (scale_of(loss) != scale)
      throw StateError("a backward of losses with different loss scales, " + std::to_string(scale) + " and " +
                           std::to_string(scale_of(loss)),
                       "multiply each of them, or none, by engine.scale()");
  return scale;
}

// What is differentiated: of a tensor that has a gradient already, their product.
at::Tensor loss_of(const at::Tensor& root, const at::Tensor& gradient) {
  if (!root.defined())
    throw StateError(
        "a backward that reaches an engine's parameters begins inside the graph: there is no loss to report",
        "begin it at a tensor");
  at::Tensor loss = root.detach();
  return gradient.defined() ? (loss.to(at::kDouble) * gradient.to(at::kDouble)).sum() : loss;
}

// The sum over all of them, without the loss scale.
at::Tensor loss_of(at::TensorList roots, at::TensorList gradients, double scale) {
  const Unwatched unwatched;
  const at::NoGradGuard no_grad;
  at::Tensor loss;
  for (std::size_t i = 0; i < roots.size(); ++i) {
    const at::Tensor each = loss_of(roots[i], i < gradients.size() ? gradients[i] : at::Tensor());
    loss = loss.defined() ? loss.to(at::kDouble) + each.to(at::kDouble) : each;
  }
  return scale == 1 ? loss : loss.to(at::kDouble) / scale;
}

// The forward that is open ends, and what follows is backward from the first operator on, whatever it reaches.
class FromItsBegin {
 public:
  FromItsBegin() : open_(MicroBatch::open()) {
    if (open_ != nullptr) open_->enter_backward();
  }
  ~FromItsBegin() {
    if (open_ != nullptr) open_->leave_backward();
  }
  FromItsBegin(const FromItsBegin&) = delete;
  FromItsBegin& operator=(const FromItsBegin&) = delete;

  void exhausted(const c10::OutOfMemoryError& error) const {
    if (open_ != nullptr) open_->accounts().exhausted(error, "backward");
  }

 private:
  MicroBatch* open_;
};

// LibTorch's door from tensors to autograd, in which at::Tensor::backward is a call of its own.
class Hooks final : public at::impl::VariableHooksInterface {
 public:
  explicit Hooks(const VariableHooksInterface& torchs) : torchs_(torchs) {}

  void _backward(const at::Tensor& root, at::TensorList inputs, const std::optional<at::Tensor>& gradient,
                 std::optional<bool> keep_graph, bool create_graph) const override {
    around_backward(
        root, gradient.value_or(at::Tensor()),
        [&] { torchs_._backward(root, inputs, gradient, keep_graph, create_graph); }, create_graph);
  }

  at::TensorBase tensor_data(const at::TensorBase& t) const override { return torchs_.tensor_data(t); }
  at::TensorBase variable_data(const at::TensorBase& t) const override { return torchs_.variable_data(t); }
  const c10::intrusive_ptr<torch::autograd::Node>& grad_fn(const at::TensorBase& t) const override {
    return torchs_.grad_fn(t);
  }
  unsigned _register_hook(const at::TensorBase& t,
                          std::function<at::TensorBase(const at::TensorBase&)> hook) const override {
    return torchs_._register_hook(t, std::move(hook));
  }
  void remove_hook(const at::TensorBase& t, unsigned place) const override { torchs_.remove_hook(t, place); }
  bool is_view(const at::TensorBase& t) const override { return torchs_.is_view(t); }
  const at::TensorBase& base(const at::TensorBase& t) const override { return torchs_.base(t); }
  const std::string& name(const at::TensorBase& t) const override { return torchs_.name(t); }
  bool is_leaf(const at::TensorBase& t) const override { return torchs_.is_leaf(t); }
  std::int64_t output_nr(const at::TensorBase& t) const override { return torchs_.output_nr(t); }
  void set_data(const at::TensorBase& t, const at::TensorBase& to) const override { torchs_.set_data(t, to); }
  at::TensorBase data(const at::TensorBase& t) const override { return torchs_.data(t); }
  std::int64_t _version(const at::TensorBase& t) const override { return torchs_._version(t); }
  void retain_grad(const at::TensorBase& t) const override { torchs_.retain_grad(t); }
  bool retains_grad(const at::TensorBase& t) const override { return torchs_.retains_grad(t); }
  void requires_grad_(const at::TensorBase& t, bool value) const override { torchs_.requires_grad_(t, value); }
  void basic_autograd_not_implemented_fallback(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                                               torch::jit::Stack* stack) const override {
    torchs_.basic_autograd_not_implemented_fallback(op, keys, stack);
  }
  std::optional<c10::ScalarType> grad_dtype(const at::TensorBase& t) const override { return torchs_.grad_dtype(t); }
  void set_grad_dtype(const at::TensorBase& t, const std::optional<c10::ScalarType>& dtype) const override {
    torchs_.set_grad_dtype(t, dtype);
  }

 private:
  const VariableHooksInterface& torchs_;
};

}  // namespace

void around_backward(at::TensorList roots, at::TensorList gradients, const std::function<void()>& backward,
                     bool create_graph) {
  if (RunningBackward::current() != nullptr || !RunningBackward::heard()) return backward();
  const double scale = scale_of(roots);
  const MicroBatch* const open = MicroBatch::open();
  const auto running = std::make_shared<RunningBackward>(nullptr, scale, MicroBatch::latest(), create_graph);
  running->foresee(roots);
  const RunningBackward::Ends ends(*running);
  const RunningBackward::Guard guard(running);
  const AutocastOff off(open != nullptr ? open->cast() : std::nullopt);
  const FromItsBegin begin;
  try {
    backward();
    if (running->taken()) running->finish(loss_of(roots, gradients, scale));
  } catch (const c10::OutOfMemoryError& error) {
    running->drop();
    begin.exhausted(error);
    throw;
  } catch (...) {
    running->drop();
    throw;
  }
}

namespace program_backward {

// For as long as the process lives: LibTorch may be asked at its very end.
void watch() {
  static const bool once = [] {
    at::impl::SetVariableHooks(new Hooks(*at::impl::GetVariableHooks()));
    return true;
  }();
  static_cast<void>(once);
}

void note_scaled(const at::Tensor& loss, double scale) {
  scaled_losses.push_back({c10::weak_intrusive_ptr<torch::autograd::Node>(loss.grad_fn()), scale});
}

}  // namespace program_backward
}  // namespace zero
