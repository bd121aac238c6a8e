// Which micro-batch of the run is the next. Each of a step has its number once, also where zero_grad() has the step
// begin anew: it then begins with the number that the program was told, or that a forward drew random numbers by, when
// no backward has come of it yet.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "backwards/micro_batch.h"
#include "gradients/gradients.h"
#include "partition/accumulation_order.h"
#include "zero/plan.h"

namespace zero {

class MicroBatchNumbers {
 public:
  // Whether the program has emptied all gradients of the step that are shown, which the next backward heeds; and
  // whether that is all that this rank has brought: others may have brought nothing, and the step begins anew.
  using Emptied = Gradients::Emptied;

  // Numbers the forwards of `micro_batch`. `plan`, as it is on its mesh, stays.
  MicroBatchNumbers(const Plan& plan, int ranks, int rank, MicroBatch& micro_batch, std::function<Emptied()> emptied)
      : plan_(plan), ranks_(ranks), rank_(rank), micro_batch_(micro_batch), emptied_(std::move(emptied)) {
    micro_batch_.before_seeding([this] {
      given_ = slot();
      micro_batch_.next(number_of(*given_), taken());
    });
  }

  // Backwards of the step so far; more than the plan's micro-batches where losses go backward one by one.
  int micro() const { return micro_; }
  // Micro-batches of all ranks, in the steps tried: applied, or skipped for overflow.
  std::int64_t consumed() const { return consumed_; }
  // The next one's place among this rank's of a step.
  int slot() const { return emptied_().all ? given_.value_or(0) : (first_ + micro_) % plan_.accumulate(); }
  // The next one's number in the run, which the program is told.
  std::int64_t tell(bool in_backward) {
    if (!in_backward) given_ = slot();
    return number_of(slot());
  }

  // A backward is over.
  void count() {
    ++micro_;
    number_from(first_);
  }
  // The step begins anew, with the slot that the program has computed with.
  void begin_anew() {
    micro_ = 0;
    number_from(given_.value_or(0));
  }
  // The step is dropped; or another one begins, all micro-batches of this one being consumed, or as many as a state
  // says.
  void drop() { next_step(consumed_); }
  void next_step() { next_step(consumed_ + std::int64_t{plan_.accumulate()} * ranks_); }
  void next_step(std::int64_t consumed) {
    consumed_ = consumed;
    micro_ = 0;
    number_from(0);
  }

 private:
  // How many backwards of the step have had the slot.
  int taken() const { return emptied_().own ? 0 : micro_ / plan_.accumulate(); }
  std::int64_t number_of(int slot) const { return consumed_ + micro_batch_index(plan_, ranks_, rank_, slot); }
  void number_from(int first) {
    first_ = first;
    given_.reset();
    if (taken() == 0) micro_batch_.begin_numbers();
    micro_batch_.next(number_of(slot()), taken());
  }

  const Plan& plan_;
  int ranks_, rank_;
  MicroBatch& micro_batch_;
  std::function<Emptied()> emptied_;
  int micro_ = 0;
  int first_ = 0;
  std::optional<int> given_;  // that the program was told, or computed with since the latest backward
  std::int64_t consumed_ = 0;
};

}  // namespace zero
