#include "parallel/operator_flow.h"

#include <ATen/Functions.h>
#include <ATen/record_function.h>

#include <memory>
#include <utility>

#include "backwards/arguments.h"
#include "backwards/operator_kind.h"
#include "zero/error.h"

namespace zero {
namespace {

thread_local OperatorFlow* observing_flow = nullptr;  // null on threads that it is not of, which are told, too
thread_local bool in_operator = false;                // an operator that is recorded, which may call others

struct Recorded final : at::ObserverContext {
  Recorded() { in_operator = true; }
  ~Recorded() override { in_operator = false; }
};

}  // namespace

struct FlowObserver {
  static std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& function) {
    const auto name = function.operator_name();
    if (observing_flow == nullptr || in_operator || !name) return nullptr;
    const auto op = c10::Dispatcher::singleton().findSchema(*name);
    if (!op || OperatorKind::of(*op).composite) return nullptr;
    auto recorded = std::make_unique<Recorded>();
    observing_flow->calls_.push_back({*op, observing_flow->stand_ins(function.inputs()), {}});
    return recorded;
  }
  static void end(const at::RecordFunction& function, at::ObserverContext* recorded) {
    if (recorded != nullptr) observing_flow->calls_.back().results = observing_flow->stand_ins(function.outputs());
  }
};

OperatorFlow::OperatorFlow(const std::function<void()>& run) {
  const at::CallbackHandle handle =
      at::addThreadLocalCallback(at::RecordFunctionCallback(&FlowObserver::begin, &FlowObserver::end)
                                     .needsInputs(true)
                                     .needsOutputs(true)
                                     .scopes({at::RecordScope::FUNCTION}));
  OperatorFlow* const before = std::exchange(observing_flow, this);
  const std::shared_ptr<void> at_end(nullptr, [&](void*) {
    at::removeCallback(handle);
    observing_flow = before;
  });
  const at::RecordFunctionGuard observed(true);
  run();
  if (calls_.empty()) throw ConfigError("the micro-batch ran no operator on this thread");
}

std::vector<c10::IValue> OperatorFlow::stand_ins(at::ArrayRef<c10::IValue> values) {
  std::vector<c10::IValue> all;
  all.reserve(values.size());
  for (const c10::IValue& value : values)
    all.push_back(value.isDevice() ? c10::IValue(at::Device(at::kMeta))
                                   : with_tensors(value, [&](const at::Tensor& tensor) { return stand_in(tensor); }));
  return all;
}

at::Tensor OperatorFlow::stand_in(const at::Tensor& tensor) {
  const at::DisableRecordFunctionGuard unobserved;
  const at::NoGradGuard no_grad;
  const at::TensorOptions options = at::TensorOptions(tensor.scalar_type()).device(at::kMeta);
  if (!tensor.has_storage() || tensor.layout() != at::kStrided) return at::empty(tensor.sizes(), options);
  c10::StorageImpl* const storage = tensor.storage().unsafeGetStorageImpl();
  storages_.try_emplace(storage, tensor.storage().getWeakStorageImpl());
  at::Tensor& found = stand_ins_[{storage, tensor.storage_offset(), tensor.sizes().vec(), tensor.strides().vec(),
                                  tensor.scalar_type()}];
  if (!found.defined()) found = at::empty_strided(tensor.sizes(), tensor.strides(), options);
  return found;
}

}  // namespace zero
