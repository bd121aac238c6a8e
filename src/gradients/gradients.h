// Takes each gradient when autograd has completed it, and brings it to where the plan keeps it:
// autograd's only door.
//
// A plan whose gradients are partial between micro-batches adds them up in place, unit by unit, and
// reduces once at the last micro-batch; one that shards them collects a unit's gradients in a flat
// array, reduce-scatters it when the unit is complete and adds the slice up. Units are reduced in an
// order all ranks share: against the layout's at first, then as rank 0 completed them. At most so many flat
// arrays are on their way at a time as the plan has units (Plan::overlap); that of a unit with a trainable parameter
// that gets no gradient is held until backward ends, since only then is it known.
//
// Where several engines take part in one backward, a rank may come to them in another order than its peers. None waits
// for a reduction of one engine then while peers may wait for it in another one: see RunningBackward::may_wait().
//
// More backwards in a step than planned (losses that go backward one by one) are each reduced for themselves and added
// to the sum over ranks, whatever the plan, so that all plans add up in one order.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "backwards/accounts.h"
#include "gradients/coded_sums.h"
#include "gradients/held_gradient.h"
#include "partition/accumulation_order.h"
#include "partition/routes.h"
#include "units/exchange.h"
#include "units/unit.h"
#include "zero/plan.h"

namespace zero {

class TakesGradients;

// Where the plan, as it is on its mesh, holds gradients, on the device those of units that are `staying`.
UnitStores gradient_stores(const Plan& plan, Accounts& accounts, std::vector<char> staying);

class Gradients {
 public:
  // Throws ConfigError for a store that is not in memory where ranks gather what they hold.
  Gradients(std::vector<std::unique_ptr<Unit>>& units, Exchange& exchange, const Plan& plan, const Routes& routes,
            Accounts& accounts, const UnitStores& stores);
  ~Gradients();

  // Throws StateError, nothing being changed, where the plan takes no micro-batch of this number.
  void require_planned(int micro) const;
  // One backward. `micro` counts the micro-batches of this step from 0. end() returns when every
  // gradient of the micro-batch is where it belongs. A begin() that throws is to be followed by abort().
  void begin(int micro);
  void end();
  // Called when a backward of the program brings a gradient, and, if `of_others`, one of another engine: begins this
  // engine's. What others bring is dropped else. `engine`: whose they are, as backwards meet it.
  void on_arrival_from_outside(const TakesGradients& engine, bool of_others, std::function<void()> begin);

  // Hears of gradients behind whatever hooks the program has set since, and where the parameters have them now. Not
  // within a backward.
  void renew_hooks();
  // Whether no rank need wait for anything more from this one before end(), in the backward that has begun.
  bool launched() const { return launched_; }

  // Called before what is held of a unit is written, or its memory given back.
  void before_change(std::function<void(int unit)> call) { before_change_ = std::move(call); }

  // Between backwards parameters show that the engine has their gradients; see grad_placeholder.h. show_placeholders()
  // is for those that have arrived in this step, and, since peers may have what this rank has not, with several ranks
  // for all that are trained: what is emptied is so on every rank. Nothing may be computed with them then.
  void show_placeholders();
  // Whether the program has emptied all that is shown, and something is; and whether some, and all that this rank has
  // brought.
  struct Emptied {
    bool all = false, own = false;
  };
  Emptied emptied() const;
  // Throws StateError where the program has put another gradient in place of one, or to a parameter that shows none.
  // Not within a backward, where gradients lie there on their way.
  void require_none_of_program() const;
  // What the program has done to them since; what it has put there is gone.
  enum class Shown : std::uint8_t { kept, some_emptied, all_emptied };
  Shown collect_placeholders();
  // Those that it has emptied then are as if they had not arrived in this step.
  void empty_some();
  // Drops everything gathered for this step.
  void abort();
  // What lies in the parameters' grad(), where a backward has failed before it was taken.
  void drop_arrived();
  // What codes have rounded off, of those that are fed back. Not within a backward.
  CodedSums& coded() { return coded_; }
  // Behind a step: of units that had no part in it there are none.
  void settle_errors(bool begin_anew);
  // The next step begins with empty gradients; memory stays.
  void clear();

  // The accumulated gradient of a unit: all of it where the plan holds it partial or replicated, else this rank's
  // slice. In Plan::gradient_dtype, or the accumulation dtype in a step with more backwards than planned. Null where
  // nothing of the unit is trained in this step.
  const HeldGradient* held(int unit) const;
  // Elements of it, which is not null, on its device: see HeldGradient::read. Throws StoreError.
  void read(int unit, const Slice& elements, const HeldGradient::Read& use);
  // Whether the slot's parameter received a gradient on this rank in this step; any at all.
  bool arrived(int unit, int slot) const;
  bool any_arrived() const;
  // Spent waiting for reductions since the last call.
  double take_seconds() { return std::exchange(waited_, 0.0); }

 private:
  struct UnitGradients;  // one unit's gradients
  // On its way, and what is sent, where that is an array of its own: it is free, and its memory, once this was waited
  // for, so that how much there is does not depend on time.
  struct Reduction {
    Pending pending;
    std::shared_ptr<Buffer> flat;
  };
  // A store of what is held, and what is computed with it there.
  struct Home {
    Home(Accounts& accounts, Store& of);

    Store& store;
    Device& computing;
    AddressableStore memory;             // there, read by peers: of micro-batches beyond the plan
    Staging staging;                     // of the thread that runs backward
    Staging late_staging;                // of the exchange's thread
    std::optional<StagedPass> arriving;  // of gradients to where they are held; none outside of backward
    const Unit* arrived = nullptr;       // whose the latest is
    // Whether what is held lies where ranks exchange it.
    bool in_place() const { return store.tier() == Tier::device; }
  };

  void hide_placeholders();
  bool shows(const UnitGradients& gradients, std::size_t slot) const;
  void empty(UnitGradients& gradients, int slot);
  bool accepts(const std::string& parameter);
  void take(int unit, int slot);
  void add_partial(UnitGradients& gradients, int slot, const at::Tensor* gradient);
  void finish_arriving();
  void close();
  Home& home_of(const Unit& unit) const { return stores_.stays(unit.index()) ? *resident_ : *offloaded_; }
  std::shared_ptr<Block> borrowed(const at::Tensor& gradient) const;
  void collect(UnitGradients& gradients, int slot, const at::Tensor* gradient);
  std::shared_ptr<Buffer> flat_for(const Unit& unit);
  std::shared_ptr<Buffer> new_flat(std::int64_t bytes);
  void open(UnitGradients& gradients);
  void complete(UnitGradients& gradients);
  void launch_ready();
  void wait_for_reductions(std::size_t but = 0);
  void forget_ended_reductions();
  bool may_wait() const;
  void reduce(UnitGradients& gradients);
  std::vector<AccumulateStep> added_to_sum() const;
  View sent_of(UnitGradients& gradients, const Route& route);
  View room_for_sum(const UnitGradients& gradients, const Route& route) const;
  void keep_sums(UnitGradients& gradients, const std::vector<AccumulateStep>& how, View sums);
  void scale_mean(View sum) const;
  void gather_sum(const MeshGroups& groups, const UnitGradients& gradients) const;
  Buffer slice_for(const Unit& unit, const Route& route) const;
  void agree_on_order();
  bool reduces_now() const { return reduces_each() || micro_ >= plan_.accumulate() - 1; }
  bool beyond_plan() const { return micro_ >= plan_.accumulate(); }
  // Whether this micro-batch is added up apart until it is reduced.
  bool adds_apart() const { return beyond_plan() && !reduces_each() && exchange_.size() > 1; }
  bool reduces_each() const { return routes_.reduces_each(); }
  Shard part(const Unit& unit) const { return routes_.between(State::gradient, unit.layout()); }
  Dtype added_in(const UnitGradients& gradients) const;  // in which this micro-batch's partial one is
  // This micro-batch's, or with those before it.
  HeldGradient& partial(UnitGradients& gradients) const;
  void clear_gaps(UnitGradients& gradients, HeldGradient& gradient);
  void hold_wide();

  std::vector<std::unique_ptr<Unit>>& units_;
  Exchange& exchange_;
  Plan plan_;
  const Routes& routes_;
  AccumulationOrder order_;
  SumsOfStep sums_;
  Accounts& accounts_;
  const UnitStores& stores_;
  std::unique_ptr<Home> offloaded_, resident_;  // see UnitStores
  std::vector<std::unique_ptr<UnitGradients>> by_unit_;
  std::vector<std::shared_ptr<Buffer>> flats_;  // as large as the largest unit
  CodedSums coded_;
  std::vector<int> units_order_;  // in which they are reduced
  std::vector<int> completed_;    // in which this rank completed them
  std::size_t next_ = 0;          // in it, to be reduced
  std::deque<Reduction> in_flight_;
  double waited_ = 0;
  int micro_ = 0;
  bool active_ = false;
  bool ending_ = false;
  std::atomic<bool> launched_ = false;  // engines of other devices ask
  bool ordered_ = false;
  const TakesGradients* engine_ = nullptr;
  bool of_others_ = false;
  std::function<void()> begin_from_outside_;
  std::function<void(int)> before_change_ = [](int) {};
  std::vector<std::pair<UnitGradients*, int>> emptied_;  // by the latest collect_placeholders(), with their slots
};

}  // namespace zero
