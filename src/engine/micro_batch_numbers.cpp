// Which micro-batch of the run is the next. Each of a step has its number once, also where zero_grad() has the step
// begin anew: it then begins with the number that the program was told, or that a forward drew random numbers by, when
// no backward has come of it yet.
#include "engine/impl.h"
#include "partition/micro_batch_index.h"

namespace zero {

// Of the next backward: what the program has emptied meanwhile is heeded then, and known here.
int Engine::Impl::slot() const {
  if (!in_backward_ && gradients_ && gradients_->all_emptied()) return given_slot_.value_or(0);
  return (first_slot_ + micro_) % plan_.accumulate();
}

// How many backwards of the step have had that slot, as far as this rank knows: where the program has emptied all that
// this rank has brought, others may have brought nothing, and the step begins anew.
int Engine::Impl::taken() const {
  return !in_backward_ && gradients_ && gradients_->own_emptied() ? 0 : micro_ / plan_.accumulate();
}

std::int64_t Engine::Impl::number_of(int slot) const {
  return consumed_ + micro_batch_index(resolved_, exchange_.size(), exchange_.rank(), slot);
}

std::int64_t Engine::Impl::next_micro_batch() {
  if (!in_backward_) given_slot_ = slot();
  return number_of(slot());
}

void Engine::Impl::number_forward() {
  given_slot_ = slot();
  micro_batch_.next(number_of(*given_slot_), taken());
}

// A step begins, with this slot, or goes on.
void Engine::Impl::number_from(int first) {
  first_slot_ = first;
  given_slot_.reset();
  if (taken() == 0) micro_batch_.begin_numbers();
  micro_batch_.next(number_of(slot()), taken());
}

}  // namespace zero
