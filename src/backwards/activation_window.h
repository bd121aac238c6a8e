// A micro-batch whose activations are paged: the operators of its forward and of what backward computes with gradients
// are recorded below autograd, as they come, and the storages that they make can lose their memory and get it back when
// an operator touches them (partition/residue.h). Autograd's saved tensors, views, and what the program refers to share
// these storages, and need no attention.
//
// Thread-safety: one thread; a storage may end on any.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/util/intrusive_ptr.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "backwards/activation_recorder.h"
#include "backwards/followed_plan.h"
#include "backwards/recorded_call.h"
#include "backwards/traced_storages.h"
#include "partition/residue.h"

namespace zero {

struct OperatorKind;

// Parameters among the arguments of operators that run again.
class ParametersAgain {
 public:
  virtual ~ParametersAgain() = default;
  // Makes them readable.
  virtual void page_in(std::span<const c10::IValue> arguments) = 0;
  // Numbers of units that are gathered for them; none where they are not the engine's own, or cannot be read again.
  virtual std::optional<std::vector<int>> units(std::span<const c10::IValue> arguments) = 0;
};

// For tests: what small models give no occasion for.
struct ActivationTrials {
  std::int64_t traced_from = 1024;                  // bytes of a storage; smaller ones are not worth it
  std::uint32_t seed = 0;                           // not 0: what is dropped first is chance
  bool refuses = true;                              // false: a budget that cannot be met is kept to as far as that goes
  std::atomic<std::int64_t>* recomputed = nullptr;  // counts operators that run again
};
void set_activation_trials(const ActivationTrials& trials);
const ActivationTrials& activation_trials();

class ActivationWindow final : private Residue, public std::enable_shared_from_this<ActivationWindow> {
 public:
  // Within `budget` bytes, by one of `plans`, of which the first is likeliest; as long as none fits, what is cheapest
  // goes first.
  ActivationWindow(ActivationRecorder& memory, ParametersAgain& parameters, std::int64_t budget,
                   FollowedPlan::Plans plans);

  // Carries out an operator of the thread; `keys` below autograd.
  void run(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);
  // An operator touches the tensor, and nothing is recorded any more.
  void touch(const at::Tensor& tensor);
  // For an operator that is about to run, on a thread on which activations may have been computed again meanwhile.
  static void page_in(ParametersAgain& parameters, std::span<const c10::IValue> arguments);
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
  void move_here() { storages_.move_here(); }
  // A storage has ended. For TracedStorages.
  void ended(int number);

  bool anything_missing() const { return storages_.missing() > 0; }
  // Whether it went by a plan to the end.
  bool kept_to_plan() const { return plan_.kept(trace_.operators.size(), executions()); }
  const std::shared_ptr<PlannedMicroBatch>& plan() const { return plan_.get(); }
  // Whether everything that can be run again was recorded so.
  bool recorded_all() const { return recorded_all_; }
  bool anything_living() const { return living() > 0; }
  const OperatorTrace& trace() const { return trace_; }
  std::string describe(int op) const;
  // Whether any ever were on this thread, so that what an operator has been given before may be gone again.
  static bool has_paged_in() { return paged_in_; }
  // Whether units are paged in on this thread for what is computed again.
  static bool paging_in() { return paging_in_; }

  using Residue::peak;
  using Residue::recomputations;

 private:
  // An operator that is under way.
  struct Running {
    std::int64_t before = 0;  // bytes held
    std::int64_t most = 0;    // more than that, at most
  };
  class Call;

  void dropped(int storage) override;
  void recompute(int op, int storage, bool first) override;
  void made(int storage, Key version, bool in_place) override;
  void forgotten(Key version) override { apart_.erase(version); }
  void freed(int storage) override { storages_.free(storage); }
  void may_be_made(int, int) override {}
  void make_room(std::int64_t bytes) override;
  // Where the ranks' micro-batches are alike, they drop the same, and come to the same units.
  std::int64_t price(const TracedOperator& op) const override;
  double distance(int storage) override { return now_ - state(storage).last_use + 1; }
  bool gives_up() override;
  std::int64_t held() const override { return memory_.held(); }

  void give(int storage, const c10::Storage& from);
  c10::Storage storage_for(const StorageUse& use, int target);
  void prepare(Call& call, const c10::OperatorHandle& op, c10::DispatchKeySet keys,
               std::span<const c10::IValue> arguments);
  void execute(Call& call, const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);
  std::vector<int> read_before_overwriting(const Call& call);
  void written_by(const Call& call, int number);
  void trace_results(std::span<const c10::IValue> results, const Call& call, int number);
  void stale(const std::vector<int>& operators);
  void before_write(const c10::StorageImpl* storage);

  static inline thread_local bool paging_in_ = false;
  static inline thread_local bool paged_in_ = false;  // ever
  ActivationRecorder& memory_;
  ParametersAgain& parameters_;
  FollowedPlan plan_;
  OperatorTrace recorded_;
  TracedStorages storages_;
  std::vector<std::unique_ptr<RecordedCall>> calls_;
  std::vector<c10::OperatorHandle> handles_;
  std::unordered_map<const c10::StorageImpl*, std::vector<int>> outside_;  // read by which operators
  std::unordered_map<Key, c10::Storage> apart_;
  c10::Storage made_;  // by what runs again
  std::optional<Running> running_;
  bool recorded_all_ = true;
  bool keeping_all_ = false;  // nothing is dropped meanwhile
};

}  // namespace zero
