#include "gradients/grad_placeholder.h"

#include <c10/core/TensorImpl.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include <atomic>
#include <memory>
#include <utility>

#include "zero/error.h"

namespace zero {
namespace {

// Of the tensors that have it, all operators come to the fallback below, before autograd.
constexpr c10::DispatchKey kMarkKey = c10::DispatchKey::TESTING_ONLY_GenericWrapper;

struct Noted {
  std::string place;
  std::atomic<bool> emptied{false};
};

class Mark final : public c10::TensorImpl {
 public:
  Mark(c10::IntArrayRef sizes, caffe2::TypeMeta dtype, c10::Device device, std::shared_ptr<Noted> about)
      : TensorImpl(c10::DispatchKeySet(kMarkKey), dtype, device), noted(std::move(about)) {
    set_sizes_contiguous(sizes);
    set_storage_access_should_throw();
  }

  // As data() and detach() make one.
  c10::intrusive_ptr<TensorImpl> shallow_copy_and_detach(const c10::VariableVersion&, bool) const override {
    return copy();
  }
  c10::intrusive_ptr<TensorImpl> shallow_copy_and_detach(c10::VariableVersion&&, bool) const override { return copy(); }

  std::shared_ptr<Noted> noted;

 private:
  c10::intrusive_ptr<TensorImpl> copy() const { return c10::make_intrusive<Mark>(sizes(), dtype(), device(), noted); }
};

const Mark* mark_of(const at::Tensor& tensor) {
  return tensor.defined() ? dynamic_cast<const Mark*>(tensor.unsafeGetTensorImpl()) : nullptr;
}

const Mark& first_of(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  const std::size_t count = op.schema().arguments().size();
  for (std::size_t i = stack.size() - count; i < stack.size(); ++i) {
    if (stack[i].isTensor())
      if (const Mark* const placeholder = mark_of(stack[i].toTensor())) return *placeholder;
    if (stack[i].isTensorList())
      for (const at::Tensor& each : stack[i].toTensorVector())
        if (const Mark* const placeholder = mark_of(each)) return *placeholder;
  }
  throw StateError(op.operator_name().name + " meets a gradient that an engine has");
}

// Whether the operator only passes the placeholder on, or empties it. It is its own result.
bool passes(const c10::OperatorHandle& op, const Mark& placeholder) {
  const std::string& name = op.operator_name().name;
  if (name == "aten::zero_") placeholder.noted->emptied = true;
  return name == "aten::zero_" || name == "aten::detach" || name == "aten::detach_" || name == "aten::alias";
}

void meet(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  const Mark& placeholder = first_of(op, *stack);
  if (passes(op, placeholder)) return;
  throw StateError(
      placeholder.noted->place + ": " + op.operator_name().name + " would compute with a gradient that is the engine's",
      "clip by Options::clip, and step by engine.step() or engine.optimizer()");
}

}  // namespace

namespace grad_placeholder {

at::Tensor make(const at::Tensor& parameter, std::string place) {
  auto noted = std::make_shared<Noted>();
  noted->place = std::move(place);
  return at::Tensor(
      c10::make_intrusive<Mark>(parameter.sizes(), parameter.dtype(), parameter.device(), std::move(noted)));
}

bool is_one(const at::Tensor& tensor) {
  return mark_of(tensor) != nullptr;
}

bool emptied(const at::Tensor& placeholder) {
  return mark_of(placeholder)->noted->emptied;
}

void renew(const at::Tensor& placeholder) {
  mark_of(placeholder)->noted->emptied = false;
}

}  // namespace grad_placeholder
}  // namespace zero

TORCH_LIBRARY_IMPL(_, TESTING_ONLY_GenericWrapper, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&zero::meet>());
}
