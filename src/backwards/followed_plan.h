// By which of some plans a micro-batch goes: by the first whose operators have been the same so far, and have run as
// often, as long as there is one. Where storages end at other times than was foretold, other operators run again, and
// what is dropped when is out of step. Another takes its place only where nothing was dropped yet.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "partition/activation_plan.h"

namespace zero {

// A plan, and the micro-batch that it is for.
struct PlannedMicroBatch {
  OperatorTrace trace;
  ActivationPlan plan;
  bool proven = false;  // what came back once was what had been dropped
};

class FollowedPlan {
 public:
  using Plans = std::vector<std::shared_ptr<PlannedMicroBatch>>;

  // The likeliest first.
  explicit FollowedPlan(Plans plans);

  // Null: there is none.
  const std::shared_ptr<PlannedMicroBatch>& get() const { return followed_; }
  explicit operator bool() const { return followed_ != nullptr; }
  bool proven() const { return followed_ != nullptr && followed_->proven; }

  // Operator `number` of the micro-batch is about to run; `executions` and `again`: what has run, and of this again.
  void meet(std::uint64_t identity, int number, std::int64_t executions, std::int64_t again);
  void leave();
  // Whether no more has to be recorded than what the plan says.
  bool decided(int number) const;
  bool needs(int number) const { return followed_->plan.needed[static_cast<std::size_t>(number)] != 0; }
  // Storages that are dropped before the next execution.
  std::span<const ActivationPlan::Drop> drops(std::int64_t executions) const;
  // What begins to be moved then.
  std::span<const ActivationPlan::Move> moves(std::int64_t executions) const;
  // Whether a micro-batch of so many operators went by it to the end.
  bool kept(std::size_t operators, std::int64_t executions) const;

 private:
  Plans candidates_;  // whose operators were the same so far
  std::shared_ptr<PlannedMicroBatch> followed_;
};

}  // namespace zero
