#include "backwards/recorded_call.h"

#include <ATen/Context.h>
#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <utility>

#include "backwards/arguments.h"
#include "backwards/operator_kind.h"
#include "backwards/unwatched.h"

namespace zero {
namespace {

const c10::Storage& no_storage() {
  static const c10::Storage none(c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), 0, c10::DataPtr(nullptr, c10::kCPU), nullptr, /*resizable=*/false));
  return none;
}

}  // namespace

// What held where the operator was called.
struct RecordedCall::Surroundings {
  explicit Surroundings(const RecordedCall& call)
      : autocast(call.cast_),
        keys(call.local_.included_, call.local_.excluded_.add(kBelowKey).add(kWatchKey)),
        gradients(call.gradients_) {}

  at::DisableRecordFunctionGuard unseen;
  AutocastScope autocast;  // its dtype, and no cache; whether it is on the keys say
  c10::impl::ForceDispatchKeyGuard keys;
  at::AutoGradMode gradients;
};

RecordedCall::RecordedCall(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                           std::span<const c10::IValue> arguments, const Traced& traced)
    : op_(op),
      keys_(keys),
      arguments_(arguments.begin(), arguments.end()),
      local_(c10::impl::tls_local_dispatch_key_set()),
      gradients_(at::GradMode::is_enabled()) {
  const OperatorKind& kind = OperatorKind::of(op);
  c10::Device where = at::kCPU;
  for (std::size_t i = 0; i < arguments_.size(); ++i)
    arguments_[i] = with_tensors(arguments_[i], [&](const at::Tensor& tensor) {
      if (!tensor.is_cpu()) where = tensor.device();
      if (!traced(tensor)) {
        if (kind.writes[i] != 0) copied_.push_back(i);
        return tensor;
      }
      at::Tensor shell(tensor.unsafeGetTensorImpl()->shallow_copy_and_detach(c10::VariableVersion(0), true));
      shell.unsafeGetTensorImpl()->set_storage_keep_dtype(no_storage());
      shells_.push_back({shell, tensor.requires_grad()});
      return shell;
    });
  cast_.device = where.type();
  cast_.dtype = at::autocast::get_autocast_dtype(cast_.device);
  if (kind.random && kind.generator >= 0 && !draws_nothing(op, arguments_)) {
    const c10::IValue& given = arguments_[static_cast<std::size_t>(kind.generator)];
    generator_ =
        given.isGenerator() ? given.toGenerator().clone() : at::globalContext().defaultGenerator(where).clone();
  }
}

// The shells have storages as long as it lives.
class RecordedCall::Lent {
 public:
  Lent(std::vector<Shell>& shells, std::span<const c10::Storage> storages) : shells_(shells) {
    for (std::size_t i = 0; i < shells_.size(); ++i) {
      shells_[i].tensor.unsafeGetTensorImpl()->set_storage_keep_dtype(storages[i]);
      if (shells_[i].requires_grad) shells_[i].tensor.set_requires_grad(true);
    }
  }
  ~Lent() {
    for (Shell& shell : shells_) {
      if (shell.requires_grad) shell.tensor.set_requires_grad(false);
      shell.tensor.unsafeGetTensorImpl()->set_storage_keep_dtype(no_storage());
    }
  }
  Lent(const Lent&) = delete;
  Lent& operator=(const Lent&) = delete;

 private:
  std::vector<Shell>& shells_;
};

torch::jit::Stack RecordedCall::run(std::span<const c10::Storage> storages) {
  const Lent lent(shells_, storages);
  torch::jit::Stack stack = arguments_;
  for (const std::size_t i : copied_) stack[i] = stack[i].toTensor().clone();
  if (generator_.defined()) stack[static_cast<std::size_t>(OperatorKind::of(op_).generator)] = generator_.clone();
  const Surroundings surroundings(*this);
  op_.redispatchBoxed(keys_, &stack);
  return stack;
}

}  // namespace zero
