// Where a run stands after some of its events, as far as the scenario says: which events may follow, and which
// micro-batch is next.
#pragma once

#include <cstdint>
#include <optional>

#include "ranks/scenario/scenario.h"

namespace zero::test::scenario {

class Course {
 public:
  explicit Course(const Scenario& scenario) : scenario_(&scenario) {}

  // Whether the engine's documentation permits the event now.
  bool permits(const Event& event) const;
  void follow(const Event& event);

  int plan() const { return plan_; }
  int micro() const { return micro_; }  // backwards of the step so far
  bool in_step() const { return micro_ > 0 || forwarded_; }
  // Of the rank's next backward, or of one after it, as Engine::micro_batch() counts it.
  std::int64_t micro_batch(int rank, int ahead = 0) const;
  // zero_grad() would empty what there is, and not what a step() that did nothing has seen.
  bool empties() const { return stepped_ == 0; }
  // Of the stretches of the run that begin with empty gradients and other parameters, the how-manieth this is.
  int window() const { return window_; }

 private:
  bool permits_backwards(int count) const;
  int slot(int ahead) const;
  void begin_step();

  const Scenario* scenario_;
  int plan_ = 0, window_ = 1;
  int micro_ = 0;
  int stepped_ = 0;          // of them, before a step() that did nothing
  bool forwarded_ = false;   // a forward since, without a backward
  int first_slot_ = 0;       // of the step's micro-batches, that which came first
  std::optional<int> told_;  // that of which the program has had the number, but no backward
  std::int64_t first_ = 0;   // the step's first micro-batch, of all ranks
  std::optional<std::int64_t> saved_;
};

int backwards_of(const Event& event);
// Whether each of a step's micro-batches goes the same way, whoever has it and in whatever order.
bool alike_in_any_order(const Scenario& scenario);
// Drops the events that are not permitted.
void keep_permitted(Scenario& scenario);

}  // namespace zero::test::scenario
