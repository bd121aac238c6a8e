// Notes operators on tensors whose values are not there yet.
#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <ATen/Functions.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include <algorithm>
#include <atomic>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "backwards/paged_activations.h"
#include "base/text.h"
#include "deferred/deferred_operators.h"
#include "deferred/deferred_storage.h"
#include "deferred/deferred_tensors.h"
#include "device/torch/devices.h"
#include "zero/error.h"

namespace zero {
namespace {

// What takes no more memory than to remember how it is made is made at once.
constexpr std::int64_t kSmall = 4096;

using namespace deferred_operators;
using Stack = torch::jit::Stack;

constexpr std::string_view kHint =
    "give its module to an engine, or to zero::materialize(), or build it without zero::deferred";

void for_each_in(const c10::IValue& value, const std::function<void(const at::Tensor&)>& call) {
  static_cast<void>(with_tensors(value, [&](const at::Tensor& tensor) {
    call(tensor);
    return tensor;
  }));
}

at::Tensor on_meta(const at::Tensor& tensor) {
  at::Tensor meta = at::detail::empty_strided_meta(tensor.sizes(), tensor.strides(), tensor.scalar_type());
  if (tensor.storage_offset() != 0) {
    const std::int64_t room =
        tensor.storage_offset() + static_cast<std::int64_t>(meta.storage().nbytes()) / tensor.itemsize();
    meta = at::Tensor(at::detail::empty_strided_meta({room}, {1}, tensor.scalar_type()))
               .as_strided(tensor.sizes(), tensor.strides(), tensor.storage_offset());
  }
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) meta.unsafeGetTensorImpl()->set_wrapped_number(true);
  return meta;
}

// A constant: the program may write over its own.
at::Tensor kept(const at::Tensor& tensor) {
  at::Tensor copy = tensor.clone();
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) copy.unsafeGetTensorImpl()->set_wrapped_number(true);
  return copy;
}

// One operator, as it is called.
class NotedCall {
 public:
  NotedCall(const Handle& op, c10::DispatchKeySet keys, Stack* stack)
      : op_(op),
        keys_(keys & below()),
        stack_(stack),
        count_(op.schema().arguments().size()),
        first_(stack->size() - count_) {
    for (std::size_t i = 0; i < count_; ++i)
      for_each_in(argument(i), [&](const at::Tensor& tensor) {
        tensors_ = true;
        DeferredStorage* const storage = DeferredStorage::of(tensor.unsafeGetTensorImpl());
        if (storage != nullptr && (subject_ == nullptr || storage->of_module)) subject_ = storage;
        if (!is_written(op, i)) return;
        writes_values_ = writes_values_ || storage == nullptr;
        writes_deferred_ = writes_deferred_ || storage != nullptr;
      });
  }

  bool on_deferred() const { return subject_ != nullptr; }
  bool on_module() const { return on_deferred() && subject_->of_module; }
  bool on_tensors() const { return tensors_; }
  // To do with tensors that have no values, some of them written; and with some that have, which are written.
  bool writes_deferred() const { return writes_deferred_; }
  bool writes_values() const { return writes_values_; }

  static c10::DispatchKeySet below() { return {c10::DispatchKeySet::FULL_AFTER, kDeferredKey}; }

  void run() const {
    const deferred_tensors::Off off;
    op_.redispatchBoxed(keys_, stack_);
  }
  // By the operators that it consists of.
  void take_apart() const { op_.redispatchBoxed(keys_, stack_); }

  // For what looks at no values, or fails.
  void look() const try { run(); } catch (const c10::Error& error) {
    if (std::string_view(error.what()).find(kHint) == std::string_view::npos) throw;
    refuse("needs the values of");
  }

  [[noreturn]] void refuse(const std::string& what) const {
    throw StateError("operator " + op_.operator_name().name + " " + what + " " + subject_->what, std::string(kHint));
  }

  // The values are there from now on.
  void settle() const {
    for (std::size_t i = 0; i < count_; ++i) for_each_in(argument(i), deferred_tensors::settle);
    run();
  }

  // Computed now, of values that are computed now.
  void compute() const { replace(called(computed())); }

  // In the usual layout, and of a size that is worth it.
  void make_later() {
    const at::Device device = device_asked().value_or(at::kCPU);
    if (!makes_one() || device.is_meta() || !plain()) return run();
    const auto recorded = std::make_shared<RecordedOperator>(record());
    Stack results = shapes(*recorded);
    if (DeferredStorage::bytes_for(results.front().toTensor()) <= kSmall) return run();
    if (only_allocates(op_)) return allocate(results.front().toTensor(), device);
    replace(deferred_results(recorded, results, device));
  }

  void note() {
    const auto recorded = std::make_shared<RecordedOperator>(record());
    if (only_allocates(op_)) return allocate(shapes(*recorded).front().toTensor(), device());
    Stack results = random(op_) ? draw(*recorded) : shapes(*recorded);
    note_written(recorded);
    replace(deferred_results(recorded, results, device()));
  }

 private:
  const c10::IValue& argument(std::size_t i) const { return (*stack_)[first_ + i]; }
  const c10::Argument& formal(std::size_t i) const { return op_.schema().arguments()[i]; }

  void replace(Stack results) const {
    torch::jit::drop(*stack_, count_);
    for (c10::IValue& result : results) stack_->push_back(std::move(result));
  }

  std::optional<at::Device> device_asked() const {
    for (std::size_t i = 0; i < count_; ++i)
      if (formal(i).name() == "device" && argument(i).isDevice()) return with_index(argument(i).toDevice());
    return {};
  }
  at::Device device() const { return device_asked().value_or(subject_->values->device()); }

  bool makes_one() const {
    const auto& returns = op_.schema().returns();
    return returns.size() == 1 && returns[0].type()->isSubtypeOf(*c10::TensorType::get()) &&
           std::ranges::any_of(op_.schema().arguments(), [](const auto& each) { return each.name() == "device"; });
  }
  // In the usual layout, in the usual memory.
  bool plain() const {
    for (std::size_t i = 0; i < count_; ++i) {
      if (formal(i).name() == "layout" && argument(i).isInt() && argument(i).toLayout() != at::kStrided) return false;
      if (formal(i).name() == "pin_memory" && argument(i).isBool() && argument(i).toBool()) return false;
    }
    return true;
  }

  void allocate(const at::Tensor& like, at::Device device) const {
    const std::int64_t bytes = DeferredStorage::bytes_for(like);
    const auto values = std::make_shared<DeferredValues>(bytes, device);
    const deferred_tensors::Off off;
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    replace({bytes > kSmall || !device.is_cpu()
                 ? DeferredStorage::tensor(like, device, values, made())
                 : at::empty_strided(like.sizes(), like.strides(), like.options().device(device))});
  }

  // What is copied keeps its name.
  std::string made() const {
    return op_.operator_name().name + " made" + (copies(op_) ? " of " + subject_->what : std::string());
  }

  // With tensors of the meta device for those without values, and copies of the others.
  RecordedOperator record() const {
    const deferred_tensors::Off off;
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    RecordedOperator recorded{op_, {}, {}, {}};
    for (std::size_t i = 0; i < count_; ++i)
      recorded.arguments.push_back(with_tensors(argument(i), [&](const at::Tensor& tensor) {
        const DeferredStorage* const storage = DeferredStorage::of(tensor.unsafeGetTensorImpl());
        if (storage == nullptr) return kept(tensor);
        const at::Tensor meta = on_meta(tensor);
        DeferredPointer values = storage->values;
        if (i == 0 && covers(tensor) && overwrites(op_))
          values = std::make_shared<DeferredValues>(values->bytes(), values->device());
        recorded.operands.push_back({meta.unsafeGetTensorImpl(), std::move(values), is_written(op_, i)});
        return meta;
      }));
    return recorded;
  }

  static bool covers(const at::Tensor& tensor) {
    return tensor.is_non_overlapping_and_dense() && tensor.storage().nbytes() == tensor.nbytes();
  }

  // What the operator gives on the meta device; what is wrong with its arguments is found there, now.
  Stack shapes(const RecordedOperator& recorded) const {
    const deferred_tensors::Off off;
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    Stack stack;
    for (std::size_t i = 0; i < count_; ++i) {
      stack.push_back(with_tensors(
          recorded.arguments[i], [](const at::Tensor& tensor) { return tensor.is_meta() ? tensor : on_meta(tensor); }));
      if (formal(i).name() == "device" && (!on_tensors() || stack[i].isDevice())) stack[i] = at::Device(at::kMeta);
      if (formal(i).name() == "pin_memory") stack[i] = c10::IValue();
    }
    try {
      op_.callBoxed(&stack);
    } catch (const c10::NotImplementedError&) {
      return shapes_of_values();
    }
    check_sizes(recorded);
    return stack;
  }

  // Of an operator that knows no meta device.
  Stack shapes_of_values() const {
    if (writes_deferred()) return Stack(op_.schema().returns().size());
    return on_meta_device(called(computed()));
  }

  Stack called(Stack stack) const {
    const deferred_tensors::Off off;
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    op_.callBoxed(&stack);
    return stack;
  }
  static Stack on_meta_device(Stack stack) {
    for (c10::IValue& value : stack) value = with_tensors(value, on_meta);
    return stack;
  }

  void check_sizes(const RecordedOperator& recorded) const {
    for (std::size_t i = 0; i < count_; ++i) {
      if (!is_written(op_, i) || !argument(i).isTensor() || !argument(i).toTensor().defined()) continue;
      if (recorded.arguments[i].toTensor().sizes() != argument(i).toTensor().sizes())
        refuse("would give another size to");
    }
  }

  // Leaves the generator as the operator does.
  Stack draw(RecordedOperator& recorded) const {
    at::Generator generator = at::globalContext().defaultGenerator(device());
    for (std::size_t i = 0; i < count_; ++i)
      if (formal(i).name() == "generator" && argument(i).isGenerator()) generator = argument(i).toGenerator();
    recorded.generator = generator.clone();
    return on_meta_device(called(computed()));
  }

  // The arguments with values; what is only written has memory for them.
  Stack computed() const {
    const deferred_tensors::Off off;
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    std::unordered_map<const DeferredValues*, c10::Storage> storages;
    Stack stack;
    for (std::size_t i = 0; i < count_; ++i)
      stack.push_back(with_tensors(argument(i), [&](const at::Tensor& tensor) {
        const DeferredStorage* const storage = DeferredStorage::of(tensor.unsafeGetTensorImpl());
        if (storage == nullptr) return tensor;
        if (i == 0 && overwrites(op_))
          return at::empty_strided(tensor.sizes(), tensor.strides(), tensor.scalar_type(), at::kStrided,
                                   storage->values->device(), /*pin_memory=*/false);
        const auto [at, fresh] = storages.try_emplace(storage->values.get());
        if (fresh) at->second = storage->values->compute();
        return tensor_in(at->second, tensor);
      }));
    return stack;
  }

  void note_written(const std::shared_ptr<const RecordedOperator>& recorded) {
    auto operand = recorded->operands.begin();
    for (std::size_t i = 0; i < count_; ++i)
      for_each_in(argument(i), [&](const at::Tensor& tensor) {
        DeferredStorage* const storage = DeferredStorage::of(tensor.unsafeGetTensorImpl());
        if (storage == nullptr) return;
        const DeferredOperand& noted = *operand++;
        if (noted.written) storage->values = std::make_shared<DeferredValues>(noted.values, recorded);
      });
  }

  // Written arguments as they are, and tensors of values that the operator will make.
  Stack deferred_results(const std::shared_ptr<const RecordedOperator>& recorded, const Stack& shapes,
                         at::Device device) const {
    Stack results;
    int number = 0;
    for (std::size_t i = 0; i < op_.schema().returns().size(); ++i) {
      if (const auto* const alias = op_.schema().returns()[i].alias_info()) {
        results.push_back(argument_of(*alias));
        for_each_in(results.back(), [&](const at::Tensor&) { ++number; });
        continue;
      }
      results.push_back(with_tensors(shapes[i], [&](const at::Tensor& like) {
        auto values =
            std::make_shared<DeferredValues>(DeferredStorage::bytes_for(like), device, recorded, number++, like);
        at::Tensor result = DeferredStorage::tensor(like, device, std::move(values), made());
        DeferredStorage::of(result.unsafeGetTensorImpl())->of_module = copies(op_) && subject_->of_module;
        return result;
      }));
    }
    return results;
  }

  const c10::IValue& argument_of(const c10::AliasInfo& alias) const {
    for (std::size_t i = 0; i < count_; ++i)
      if (formal(i).alias_info() != nullptr && formal(i).alias_info()->beforeSets() == alias.beforeSets())
        return argument(i);
    refuse("returns what is not known of");
  }

  const Handle& op_;
  c10::DispatchKeySet keys_;
  Stack* stack_;
  std::size_t count_, first_;
  DeferredStorage* subject_ = nullptr;  // of an argument without values, of a module's where there is one
  bool tensors_ = false, writes_values_ = false, writes_deferred_ = false;
};

std::atomic<deferred_tensors::RunOthers> run_others = nullptr;

bool any_with_key(const Handle& op, const Stack& stack) {
  bool any = false;
  for (std::size_t i = stack.size() - op.schema().arguments().size(); i < stack.size(); ++i)
    for_each_defined(stack[i], [&](const at::Tensor& tensor) { any = any || tensor.key_set().has(kDeferredKey); });
  return any;
}

void note(const Handle& op, c10::DispatchKeySet keys, Stack* stack) {
  const bool inside = deferred_tensors::under_way();
  const bool any = any_with_key(op, *stack);
  if (!inside && !any) return Activations::run(op, keys & NotedCall::below(), stack);
  if (const auto others = any ? run_others.load() : nullptr; others != nullptr && others(op, keys, stack)) return;
  NotedCall call(op, keys, stack);
  if (taken_apart(op)) return call.take_apart();
  if (!call.on_deferred()) return inside && !call.on_tensors() && !random(op) ? call.make_later() : call.run();
  const bool constant = !inside && !call.on_module();  // what a constructor left in a member that is not registered
  if (needs_values(op)) return constant ? call.settle() : call.refuse("needs the values of");
  if (looks_only(op) || (!gives_tensors(op) && !call.writes_deferred())) return call.look();
  if (call.writes_values()) return call.compute();
  if (inside || call.writes_deferred() || copies(op) || only_allocates(op)) return call.note();
  if (constant) return call.settle();
  call.refuse("was called outside of zero::deferred, and needs the values of");
}

}  // namespace

void deferred_tensors::others_run_by(RunOthers run) {
  run_others = run;
}

std::int64_t DeferredStorage::bytes_for(const at::Tensor& like) {
  return static_cast<std::int64_t>(at::detail::computeStorageNbytes(like.sizes(), like.strides(), like.itemsize()));
}

at::Tensor DeferredStorage::tensor(const at::Tensor& like, at::Device device, DeferredPointer values,
                                   const std::string& made) {
  auto* const self =
      new DeferredStorage{std::move(values), "a tensor of " + std::string(c10::toString(like.scalar_type())) + " " +
                                                 listed({like.sizes().data(), like.sizes().size()}) + " that " + made};
  c10::Storage storage(c10::Storage::use_byte_size_t(), static_cast<std::size_t>(bytes_for(like)),
                       at::DataPtr(nullptr, self, &remove, device), nullptr, /*resizable=*/false);
  self->say(*storage.unsafeGetStorageImpl());
  const c10::DispatchKeySet keys({c10::computeDispatchKey(like.scalar_type(), at::kStrided, device), kDeferredKey});
  at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), keys, like.dtype());
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(like.sizes(), like.strides());
  return tensor;
}

void DeferredStorage::say(c10::StorageImpl& storage) const {
  storage.release_data_and_set_meta_custom_data_ptr_error_msg_("zero: the values of " + what + " are not there yet (" +
                                                               std::string(kHint) + ")");
}

}  // namespace zero

TORCH_LIBRARY_IMPL(_, Fake, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&zero::note>());
}
