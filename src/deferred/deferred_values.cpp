#include "deferred/deferred_values.h"

#include <ATen/Context.h>
#include <ATen/Functions.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>

#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "backwards/unwatched.h"
#include "deferred/deferred_tensors.h"

namespace zero {
namespace {

using Stack = torch::jit::Stack;

c10::Storage memory_for(std::int64_t bytes, at::Device device) {
  return at::empty({bytes}, at::TensorOptions().dtype(at::kByte).device(device)).storage();
}

c10::Storage copy_of(const c10::Storage& storage, std::int64_t bytes, at::Device device) {
  c10::Storage copy = memory_for(bytes, device);
  const auto as_bytes = at::TensorOptions().dtype(at::kByte).device(device);
  at::empty({0}, as_bytes).set_(copy, 0, {bytes}, {1}).copy_(at::empty({0}, as_bytes).set_(storage, 0, {bytes}, {1}));
  return copy;
}

void flatten(const c10::IValue& value, std::vector<at::Tensor>& tensors) {
  if (value.isTensor()) {
    tensors.push_back(value.toTensor());
  } else if (value.isList()) {
    for (const c10::IValue& item : value.toListRef()) flatten(item, tensors);
  }
}

// Its generator is the default one, or one that it is given.
void call_drawing(const c10::OperatorHandle& op, const at::Generator& from, Stack& stack) {
  const auto& formal = op.schema().arguments();
  for (std::size_t i = 0; i < stack.size(); ++i) {
    if (formal[i].name() != "generator") continue;
    stack[i] = from.clone();
    return op.callBoxed(&stack);
  }
  const DrawsFrom draws(from);
  op.callBoxed(&stack);
}

}  // namespace

at::Tensor tensor_in(const c10::Storage& storage, const at::Tensor& like) {
  return at::empty({0}, at::TensorOptions().dtype(like.scalar_type()).device(storage.device()))
      .set_(storage, like.storage_offset(), like.sizes(), like.strides());
}

DrawsFrom::DrawsFrom(const at::Generator& like)
    : generator_(at::globalContext().defaultGenerator(like.device())), before_(generator_.get_state()) {
  generator_.set_state(like.get_state());
}

DrawsFrom::~DrawsFrom() {
  generator_.set_state(before_);
}

// A long history ends one after the other, not one inside the other.
DeferredValues::~DeferredValues() {
  DeferredPointer next = std::move(before_);
  while (next && next.use_count() == 1) {
    DeferredPointer then = std::move(next->before_);
    next = std::move(then);
  }
}

// Carries out what values go back to, each once: those that several need are kept until the last has had them.
class DeferredValues::Computing {
 public:
  Computing(const DeferredValues& wanted, c10::Storage room)
      : wanted_(wanted), first_(&wanted), room_(std::move(room)) {
    while (first_->before_) first_ = first_->before_.get();
    std::vector<const DeferredValues*> open{&wanted};
    std::unordered_set<const DeferredValues*> seen{&wanted};
    while (!open.empty()) {
      const DeferredValues* const values = open.back();
      open.pop_back();
      each_input(*values, [&](const DeferredValues* input) {
        ++uses_[input];
        if (seen.insert(input).second) open.push_back(input);
      });
    }
  }

  c10::Storage run() { return make(wanted_); }

 private:
  // Each of them once, whatever has it.
  template <class Call>
  static void each_input(const DeferredValues& values, const Call& call) {
    std::unordered_set<const DeferredValues*> inputs;
    if (values.before_) inputs.insert(values.before_.get());
    if (values.by_)
      for (const DeferredOperand& operand : values.by_->operands) inputs.insert(operand.values.get());
    for (const DeferredValues* input : inputs) call(input);
  }

  // From the nearest that is there, on: what is written over and over is a loop, not a recursion.
  c10::Storage make(const DeferredValues& values) {
    std::vector<const DeferredValues*> todo{&values};
    while (todo.back()->before_ && !there_.contains(todo.back()->before_.get()))
      todo.push_back(todo.back()->before_.get());
    c10::Storage now;
    for (; !todo.empty(); todo.pop_back()) {
      const DeferredValues& next = *todo.back();
      if (next.before_ && !now) now = there_.at(next.before_.get());
      now = next.before_ ? write(next, std::move(now)) : begin(next);
      if (todo.size() > 1 && uses_.at(&next) > 1) there_.emplace(&next, now);
    }
    return now;
  }

  c10::Storage begin(const DeferredValues& values) {
    if (values.by_) return result_of(values);
    c10::Storage memory =
        room_ && &values == first_ ? std::exchange(room_, {}) : memory_for(values.bytes_, values.device_);
    if (const Source* const source = values.source()) source->read(0, values.bytes_, memory.mutable_data());
    return memory;
  }

  c10::Storage result_of(const DeferredValues& values) {
    Stack stack = call(*values.by_, nullptr, {});
    std::vector<at::Tensor> results;
    for (const c10::IValue& value : stack) flatten(value, results);
    const at::Tensor& result = results.at(static_cast<std::size_t>(values.result_));
    if (result.storage().nbytes() == static_cast<std::size_t>(values.bytes_) && result.storage_offset() == 0 &&
        result.strides() == values.like_.strides())
      return result.storage();
    c10::Storage memory = memory_for(values.bytes_, values.device_);
    tensor_in(memory, values.like_).copy_(result);
    return memory;
  }

  c10::Storage write(const DeferredValues& values, c10::Storage before) {
    if (--uses_.at(values.before_.get()) > 0) {
      before = copy_of(before, values.bytes_, values.device_);
    } else {
      there_.erase(values.before_.get());
    }
    call(*values.by_, values.before_.get(), before);
    return before;
  }

  // What an operator leaves on the stack; it writes `own`, the storage of `before`, in place.
  Stack call(const RecordedOperator& recorded, const DeferredValues* before, const c10::Storage& own) {
    std::unordered_map<const DeferredValues*, c10::Storage> inputs;
    if (before != nullptr) inputs.emplace(before, own);
    std::unordered_map<const c10::TensorImpl*, const DeferredValues*> places;
    for (const DeferredOperand& operand : recorded.operands) {
      const DeferredValues* const values = operand.values.get();
      places.emplace(operand.stands_for, values);
      if (!inputs.contains(values)) inputs.emplace(values, input(*values, operand.written));
    }
    Stack stack;
    for (const c10::IValue& argument : recorded.arguments)
      stack.push_back(with_tensors(argument, [&](const at::Tensor& tensor) {
        const auto place = places.find(tensor.unsafeGetTensorImpl());
        return place == places.end() ? tensor : tensor_in(inputs.at(place->second), tensor);
      }));
    if (recorded.generator.defined()) {
      call_drawing(recorded.op, recorded.generator, stack);
    } else {
      recorded.op.callBoxed(&stack);
    }
    return stack;
  }

  c10::Storage input(const DeferredValues& values, bool written) {
    const auto found = there_.find(&values);
    c10::Storage storage = found == there_.end() ? make(values) : found->second;
    if (--uses_.at(&values) == 0) {
      there_.erase(&values);
      return storage;
    }
    there_.emplace(&values, storage);
    return written ? copy_of(storage, values.bytes_, values.device_) : storage;
  }

  const DeferredValues& wanted_;
  const DeferredValues* first_;  // which it begins with
  c10::Storage room_;
  std::unordered_map<const DeferredValues*, int> uses_;  // that are still to come
  std::unordered_map<const DeferredValues*, c10::Storage> there_;
};

c10::Storage DeferredValues::compute(c10::Storage room) const {
  const Unwatched unwatched;
  const deferred_tensors::Off as_they_are;
  const c10::InferenceMode ordinary(false);  // inside a program's own, too
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  return Computing(*this, std::move(room)).run();
}

}  // namespace zero
