// Pages parameters in when an operator uses them (design of ZeRO-3's on-demand gathering: a page fault
// gathers, a byte budget evicts, the order recorded in one micro-batch prefetches in the next).
//
// The first use of a parameter also opens the micro-batch's window: inside it random operators draw
// from the engine's generator, seeded by the global micro-batch index, and in a 16-bit precision operators run under
// LibTorch's autocast. Backward and step close it, and so does, at the next operator, that nothing is left of what
// parameters were used for: to look at a weight between steps is no forward. So code outside the model is untouched.
//
// Thread-safety: runs on the thread that runs forward and backward.
#pragma once

#include <ATen/core/Generator.h>
#include <c10/util/intrusive_ptr.h>

#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "comm/metered.h"
#include "partition/residency.h"
#include "state/exchange.h"
#include "state/float8_linear.h"
#include "state/max_norms.h"
#include "state/observer.h"
#include "state/unit.h"
#include "state/witness.h"
#include "zero/estimate.h"

namespace torch::autograd {
struct Node;
}

namespace zero {

class Pager {
 public:
  struct Settings {
    std::optional<at::ScalarType> autocast = {};  // compute in this dtype
    std::uint64_t seed = 0;
    std::shared_ptr<TrafficMeter> meter;  // of what is read where it lies
    c10::intrusive_ptr<Float8Linears> float8 = {};
    std::vector<MaxNorms::Table> max_norms = {};
  };

  Pager(std::vector<std::unique_ptr<Unit>>& units, Exchange& exchange, Residency residency, Accounts& accounts,
        const Settings& settings);
  ~Pager();

  // Makes the units readable, together; called before an operator that has them (at least one) as arguments.
  void touch(std::span<Unit* const> units);
  // The unit's whole is on its way; the next touch waits for it.
  void expect(Unit& unit, Pending pending);
  // Every rank's part of the common units will be there when `pending` is complete.
  void renew(Pending pending) { renewed_ = std::move(pending); }
  void settle_renewed() { renewed_.wait(); }

  // Waits for a replicated unit's new values, if they are on their way.
  void settle_published(Unit& unit);

  // The life of a micro-batch. `more_to_come`: another one follows before the step.
  void begin_backward(bool more_to_come);
  void end_backward();
  // A forward or a backward failed: the next touch begins a new micro-batch.
  void abort();
  // The next forward's random operators are seeded by `index`.
  void next_micro_batch(std::int64_t index);
  // From the next micro-batch on.
  void reseed(std::uint64_t seed) { settings_.seed = seed; }
  // Sharded units have new values: forgets the old ones.
  void forget();

  void open_window();
  void close_window();
  // What keeps it open, where gradients are enabled: the graph of a result, or that a frozen parameter was used.
  void keep_window_for(const c10::TensorImpl& result);
  void hold_window() { held_ = true; }
  // Whether the open window is over, now that gradients are enabled: it was an evaluation's, or nothing keeps it.
  bool over();

  // Keeps a unit resident for a gather scope, in which it may be written.
  void pin(Unit& unit);
  void unpin(Unit& unit);
  bool pinned(const Unit& unit) const { return pins_[static_cast<std::size_t>(unit.index())] > 0; }

  // Hears of forward, backward, and units that are read where they lie.
  void observe(std::weak_ptr<EngineObserver> observer) { observer_ = std::move(observer); }

  // Forgets what was written to a sharded unit.
  void discard(Unit& unit);

  const std::optional<Trace>& trace() const { return last_; }  // of the last micro-batch
  const at::Generator& generator() const { return generator_; }
  // To which dtype an operator of the window is cast, one `with_units` or another. Where the program has autocast on
  // itself, what has no parameters is cast only where it is still on.
  std::optional<at::ScalarType> autocast(bool with_units) const;
  // Spent waiting for units since the last call.
  double take_seconds() { return std::exchange(waited_, 0.0); }
  const c10::intrusive_ptr<Float8Linears>& float8() const { return settings_.float8; }
  MaxNorms& max_norms() { return max_norms_; }

 private:
  void record(Unit& unit);
  void fetch(Unit& unit);
  void fetch_exactly(Unit& unit);
  void start_gather(Unit& unit, int keep, bool exactly);
  View room_for(Unit& unit);
  void refuse_recomputation() const;
  void drop_ended_graphs();
  void settle(Unit& unit);
  void prefetch_after(Unit& unit);
  int predicted_next() const;
  void evict(int unit);

  std::vector<std::unique_ptr<Unit>>& units_;
  Exchange& exchange_;
  Witness witness_;
  Settings settings_;
  MaxNorms max_norms_;
  Residency residency_;
  Pending renewed_;
  std::vector<Pending> pending_;
  std::vector<char> in_flight_;
  std::vector<int> pins_;
  Trace current_;
  std::optional<Trace> last_;
  std::size_t cursor_ = 0;  // in last_, of the newest touch
  bool lost_ = true;        // the newest touch was not foreseen
  bool in_backward_ = false;
  bool more_to_come_ = false;
  bool window_open_ = false;
  bool evaluating_ = false;
  bool held_ = false;
  bool program_casts_ = false;
  std::vector<c10::weak_intrusive_ptr<torch::autograd::Node>> graphs_;  // of results
  std::weak_ptr<EngineObserver> observer_;
  std::optional<Acting> forward_;
  std::optional<Acting> backward_;
  at::Generator generator_;
  std::int64_t next_index_ = 0;
  double waited_ = 0;
  bool seeded_ = false;
};

// A unit that is whole as long as this lives.
class Pinned {
 public:
  Pinned(Pager& pager, Unit& unit) : pager_(&pager), unit_(&unit) { pager_->pin(unit); }
  Pinned(Pinned&& other) noexcept : pager_(std::exchange(other.pager_, nullptr)), unit_(other.unit_) {}
  Pinned& operator=(Pinned&&) = delete;
  ~Pinned() {
    if (pager_ != nullptr) pager_->unpin(*unit_);
  }
  // It has come to its end whole.
  void forget() { pager_ = nullptr; }

 private:
  Pager* pager_;
  Unit* unit_;
};

}  // namespace zero
