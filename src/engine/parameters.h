// The parameters of an engine's module and all that is kept of them at rest: paged in for operators, initialised,
// written by gather scopes, told to the other ranks once updated, read whole, and given back.
//
// Thread-safety: the thread that runs forward, backward and step.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "backwards/micro_batch.h"
#include "deferred/deferred_tensors.h"
#include "engine/engine_ranks.h"
#include "engine/trained.h"
#include "operators/max_norms.h"
#include "units/pager.h"
#include "update/delayed_update.h"
#include "update/updater.h"

namespace zero {

class MemoryNeeds;

class Parameters {
 public:
  // Takes the module's tensors over, with rank 0's values; they are as they were before where this ends without
  // settle(). Collective. `owner` is the units'.
  Parameters(const Trained& trained, EngineRanks& ranks, Liveness& life, const Inventory& inventory, UnitOwner& owner);
  ~Parameters() = default;
  Parameters(const Parameters&) = delete;
  Parameters& operator=(const Parameters&) = delete;
  // The module is the engine's: nothing can fail any more.
  void settle();
  // Nothing is on its way any more, and no forward is open.
  void end() noexcept;

  std::vector<std::unique_ptr<Unit>>& units() { return units_; }
  Unit& unit(int index) const { return *units_[static_cast<std::size_t>(index)]; }
  Pager& pager() { return *pager_; }
  const Pager& pager() const { return *pager_; }
  MicroBatch& micro_batch() { return micro_batch_; }
  const MicroBatch& micro_batch() const { return micro_batch_; }
  MaxNorms& max_norms() { return max_norms_; }
  Updater& updater() { return updater_; }
  const Updater& updater() const { return updater_; }
  const UnitStores& gradient_stores() const { return gradient_stores_; }
  DelayedUpdate* delayed() const { return delayed_.get(); }  // null but under Plan::delay_update()
  void observe(const std::weak_ptr<EngineObserver>& observer);

  // Goes on from a state: random numbers by this seed, and how often each parameter was updated.
  void resume(std::uint64_t seed, std::vector<std::int64_t> updates);
  MemoryNeeds needs() const;
  // Expires when what state() has told of is no longer so: with the next invalidate_state().
  std::weak_ptr<const void> state_valid();
  void invalidate_state() { state_valid_.reset(); }

  // By its number in the layout; a parameter of this engine, for `call`, throws ConfigError for another tensor.
  const at::Tensor& at(int index) const;
  Unit& unit_of(const at::Tensor& parameter, const char* call) const;
  // Throw StateError: against what was done to parameters outside of scopes, and for `call` inside of one.
  void require_unchanged() const;
  void require_no_scope(const char* call) const;

  // The unit has new values at rest on this rank: the others get them, which publish() leaves out of versions.
  void updated(Unit& unit);
  void publish(Unit& unit, Exchange::Kind kind);
  // This rank has written its part of units in common memory, which `kind` did.
  void renew(Exchange::Kind kind);
  // Whether any unit is so: Unit::common, for example.
  bool any(bool (Unit::*is)() const) const;
  // What is on its way to all ranks has come.
  void wait_for_publication();
  // What was written to the unit's whole, anything or a few rows, becomes what is kept of it; `from_rank`'s copy wins.
  // Collective.
  enum class Written : std::uint8_t { anything, rows };
  void keep(Unit& unit, std::optional<int> from_rank, Written what = Written::anything);
  // Rows that were looked up get their largest norm where they live, as lookups have seen them: before an update, and
  // before anybody reads them otherwise. Collective.
  void renormalise();

  // What this rank updates of an array in the host's memory that has all of the unit; and each rank's part of it to
  // all ranks, which is collective.
  View updated_of(const Unit& unit, const at::Tensor& whole) const;
  void gather_updated(const Unit& unit, const at::Tensor& whole);
  // The main weight, in the accumulation dtype, on the parameter's device. Collective.
  at::Tensor main_parameter(const at::Tensor& parameter);
  // The module's own again; `before_end` is called when all is gathered that is given back. Collective.
  void release(ReleaseAs as, const std::function<void()>& before_end);

 private:
  // Stops what serves units before they go.
  struct Served {
    Exchange& exchange;
    ~Served() { exchange.stop(); }
  };
  // Puts the module's parameters back as they were, unless settled.
  class Taken {
   public:
    explicit Taken(std::vector<std::unique_ptr<Unit>>& units) : units_(&units) {}
    ~Taken();
    void settle();
    bool settled() const { return units_ == nullptr; }
    // Values of tensors that no unit has, for when nothing can fail any more.
    std::vector<deferred_tensors::Settling> others;

   private:
    std::vector<std::unique_ptr<Unit>>* units_;
  };

  void take_over(const Inventory& inventory, UnitOwner& owner);
  Buffer values_of(const Unit& unit, bool in_part);
  at::Tensor copy_of(const at::Tensor& tensor) const;
  std::vector<char> read_in_parts();
  // What the program can do when the device has no memory left.
  const char* way_on() const;
  std::vector<at::Tensor> whole_weights();

  const Trained& trained_;
  EngineRanks& ranks_;
  Liveness& life_;
  Buffer codes_;                        // of gathered parameters on their way
  std::unique_ptr<TierLoader> loader_;  // of parameters on another tier than the device; null: they are there
  std::vector<std::unique_ptr<Unit>> units_;
  Served served_;
  UnitStores gradient_stores_;
  Updater updater_;
  MaxNorms max_norms_;
  MicroBatch micro_batch_;
  std::unique_ptr<Pager> pager_;
  std::unique_ptr<DelayedUpdate> delayed_;
  std::shared_ptr<const int> state_valid_;
  Taken taken_;
};

}  // namespace zero
