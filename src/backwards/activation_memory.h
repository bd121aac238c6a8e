// The memory of a micro-batch's activations: the steps of partition/eviction.h, with storages whose memory goes and
// comes, and operators that run again. On the host what is held is what the allocator says; on a device, the storages
// that operators made.
//
// Thread-safety: one thread at a time.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/Storage.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <memory_resource>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "backwards/activation_recorder.h"
#include "backwards/followed_plan.h"
#include "backwards/observer.h"
#include "backwards/recorded_call.h"
#include "backwards/stored_activations.h"
#include "backwards/traced_storages.h"
#include "partition/eviction.h"

namespace zero {

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
  std::int64_t traced_from = kLeastPaged;           // bytes of a storage; smaller ones are not worth it
  std::int64_t moved_from = kLeastStored;           // the same, to disks and over links
  std::uint32_t seed = 0;                           // not 0: what is dropped first is chance
  bool refuses = true;                              // false: a budget that cannot be met is kept to as far as that goes
  std::atomic<std::int64_t>* recomputed = nullptr;  // counts operators that run again
};
void set_activation_trials(const ActivationTrials& trials);
const ActivationTrials& activation_trials();

// What a micro-batch is given.
struct ActivationSetting {
  ActivationRecorder& memory;
  ParametersAgain& parameters;
  ActivationStore* store;  // null where all is computed again
  const std::weak_ptr<EngineObserver>& observer;
  std::int64_t budget;
  std::size_t usual_operators = 0;  // so many are expected
};

class ActivationMemory : public Eviction {
 public:
  // For an operator that is about to run, on a thread on which activations may have been computed again meanwhile.
  static void page_in(ParametersAgain& parameters, std::span<const c10::IValue> arguments);
  // Whether parameters have been paged in so on this thread; whether they are, right now.
  static bool has_paged_in() { return paged_in_; }
  static bool paging_in() { return paging_in_; }

 protected:
  ActivationMemory(ActivationWindow& window, const ActivationSetting& setting, FollowedPlan::Plans plans);

  // An operator that is under way.
  struct Running {
    std::int64_t before = 0;  // bytes held
    std::int64_t most = 0;    // more than that, at most
  };
  // One that was: null where it cannot run again.
  struct Called {
    c10::OperatorHandle op;
    std::unique_ptr<RecordedCall> again;
  };
  RecordedCall* again(int number) const { return calls_[static_cast<std::size_t>(number)].again.get(); }
  std::string describe_operator(int number) const;
  void make_room(std::int64_t bytes) override;
  // Drops as much as `bytes` more need, by no plan from there on.
  void keep_within_budget(std::int64_t bytes);
  bool gives_up() override;
  std::int64_t held() const override { return memory_.observes() ? memory_.held() : bytes_ + stored_.arriving(); }
  void freed(int storage) override;
  StorageValues values_of(int storage) const;
  void book();
  void forget_all() noexcept;

  ActivationRecorder& memory_;
  ParametersAgain& parameters_;
  const std::weak_ptr<EngineObserver> observer_;
  StoredActivations stored_;
  FollowedPlan plan_;
  std::pmr::monotonic_buffer_resource lists_;  // of the trace
  OperatorTrace recorded_;
  TracedStorages storages_;
  std::vector<Called> calls_;
  std::optional<Running> running_;
  bool keeping_all_ = false;  // nothing is dropped meanwhile

 private:
  void dropped(int storage, bool stored) override;
  void fetch(int storage) override;
  void discard(int storage) override { stored_.discard(storage); }
  std::int64_t arrived(int storage) const override { return stored_.arrived(storage); }
  void recompute(int op, int storage, bool first) override;
  void made(int storage, Key version, bool in_place) override;
  void forgotten(Key version) override { apart_.erase(version); }
  void may_be_made(int, int) override {}
  // Where the ranks' micro-batches are alike, they drop the same, and come to the same units.
  std::int64_t price(const TracedOperator& op) const override;
  double distance(int storage) override { return now_ - state(storage).last_use + 1; }

  void give(int storage, const c10::Storage& from);
  [[noreturn]] void came_otherwise(int storage) const;
  c10::Storage storage_for(const StorageUse& use, int target);
  void begin_moves();
  void store(int storage);
  void begin_fetch(int storage);

  static inline thread_local bool paging_in_ = false;
  static inline thread_local bool paged_in_ = false;  // ever
  const std::int64_t micro_batch_ = memory_.micro_batch();
  std::unordered_map<Key, c10::Storage> apart_;
  c10::Storage made_;  // by what runs again, or fetched
};

}  // namespace zero
