// A micro-batch whose activations are paged: the operators of its forward and of what backward computes with gradients
// are recorded below autograd, as they come, and the storages that they make can lose their memory and get it back when
// an operator touches them (partition/residue.h). Autograd's saved tensors, views, and what the program refers to share
// these storages, and need no attention.
//
// Thread-safety: one thread, and in a backward those of devices; a storage may end on any.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/DispatchKeySet.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "backwards/activation_memory.h"

namespace zero {

struct OperatorKind;

class ActivationWindow final : public ActivationMemory, public std::enable_shared_from_this<ActivationWindow> {
 public:
  // Within the budget, by one of `plans`, of which the first is likeliest; as long as none fits, what is cheapest goes
  // first.
  ActivationWindow(const ActivationSetting& setting, FollowedPlan::Plans plans)
      : ActivationMemory(*this, setting, std::move(plans)) {}

  // Carries out an operator of the thread; `keys` below autograd.
  void run(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);
  // An operator touches the tensor, and nothing is recorded any more.
  void touch(const at::Tensor& tensor);
  // Memory is about to be taken on the thread that runs an operator.
  void allocating(std::int64_t bytes);

  // The window that a tensor's storage is of, or null.
  static ActivationWindow* of(const at::Tensor& tensor) { return TracedStorages::window_of(tensor); }
  // It has its values from here on, for whoever reads them past operators.
  void keep(const at::Tensor& tensor);
  // Everything that lives has its values, and is LibTorch's own again: nothing of the window is left. Before what it
  // was made of changes. Throws what recomputing throws.
  void close();
  // The same where that fails: what is missing throws when it is read.
  void abandon() noexcept;
  // Another thread goes on with it.
  void move_here();
  // A storage has ended. For TracedStorages.
  void ended(int number);

  bool anything_missing() const { return storages_.missing() > 0; }
  // Whether it went by a plan to the end.
  bool kept_to_plan() const { return plan_.kept(trace_.operators.size(), executions()); }
  const std::shared_ptr<PlannedMicroBatch>& plan() const { return plan_.get(); }
  // Whether everything that can be run again was recorded so.
  bool recorded_all() const { return recorded_all_; }
  bool anything_living() const { return alive().count > 0; }
  const OperatorTrace& trace() const { return trace_; }
  std::string describe(int op) const { return describe_operator(op); }

  using Residue::peak;
  using Residue::so_far;

 private:
  class Call;

  void require_here();
  void prepare(Call& call, const c10::OperatorHandle& op, c10::DispatchKeySet keys,
               std::span<const c10::IValue> arguments);
  void execute(Call& call, const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);
  // By a way that is not exact: what products of the forward read becomes what it is when it comes back, before a
  // backward reads it, so that it is the same whether it went or not. An operator of the trace, which cannot be run
  // again.
  void round_arguments(const c10::OperatorHandle& op, std::span<const c10::IValue> arguments);
  void round(const c10::OperatorHandle& op, int storage);
  bool rounds(int storage) const;
  void may_be_stored(const at::Tensor& result, int storage);
  void end_those_ended();
  void written_by(const Call& call, int number);
  void trace_results(std::span<const c10::IValue> results, const Call& call, int number);
  void before_write(const c10::StorageImpl* storage);

  std::unordered_map<const c10::StorageImpl*, std::vector<int>> outside_;  // read by which operators
  std::vector<int> ended_;                                                 // while an operator ran
  bool recorded_all_ = true;
  std::recursive_mutex mutex_;  // of what threads of a backward do
};

}  // namespace zero
