#include "parallel/operator_flow.h"

#include <ATen/Functions.h>
#include <ATen/record_function.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <memory>
#include <string_view>
#include <utility>

#include "backwards/arguments.h"
#include "backwards/operator_kind.h"
#include "zero/error.h"

namespace zero {
namespace {

thread_local bool in_operator = false;  // that is recorded, and may call others

// Where LibTorch hands a thread's state on, as to the threads of a device's backward, this goes with it.
constexpr std::string_view kName = "zero: operators are recorded";
constexpr c10::DebugInfoKind kInfo(&kName);

struct Observation final : c10::DebugInfoBase {
  explicit Observation(OperatorFlow& of) : flow(of) {}
  OperatorFlow& flow;
};

// Null on threads that are told, but that no flow is of.
OperatorFlow* flow_here() {
  auto* const observation = static_cast<Observation*>(c10::ThreadLocalDebugInfo::get(kInfo));
  return observation == nullptr ? nullptr : &observation->flow;
}

struct Recorded final : at::ObserverContext {
  Recorded(OperatorFlow& of, std::size_t place) : flow(of), number(place) { in_operator = true; }
  ~Recorded() override { in_operator = false; }
  OperatorFlow& flow;
  std::size_t number;
};

}  // namespace

struct FlowObserver {
  static std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& function) {
    OperatorFlow* const flow = flow_here();
    const auto name = function.operator_name();
    if (flow == nullptr || in_operator || !name) return nullptr;
    const auto op = c10::Dispatcher::singleton().findSchema(*name);
    if (!op || OperatorKind::of(*op).composite) return nullptr;
    const std::lock_guard lock(flow->mutex_);
    flow->calls_.push_back({*op, flow->stand_ins(function.inputs()), {}});
    return std::make_unique<Recorded>(*flow, flow->calls_.size() - 1);
  }
  static void end(const at::RecordFunction& function, at::ObserverContext* context) {
    if (context == nullptr) return;
    const auto& recorded = static_cast<const Recorded&>(*context);
    const std::lock_guard lock(recorded.flow.mutex_);
    recorded.flow.calls_[recorded.number].results = recorded.flow.stand_ins(function.outputs());
  }
};

OperatorFlow::OperatorFlow(const std::function<void()>& run) {
  const at::CallbackHandle handle =
      at::addThreadLocalCallback(at::RecordFunctionCallback(&FlowObserver::begin, &FlowObserver::end)
                                     .needsInputs(true)
                                     .needsOutputs(true)
                                     .scopes({at::RecordScope::FUNCTION}));
  const std::shared_ptr<void> at_end(nullptr, [&](void*) { at::removeCallback(handle); });
  const c10::DebugInfoGuard here(kInfo, std::make_shared<Observation>(*this));
  const at::RecordFunctionGuard observed(true);
  run();
  if (calls_.empty()) throw ConfigError("the micro-batch ran no operator on this thread, nor for it");
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
