// What an engine says when a device has no memory left.
#include "engine/impl.h"
#include "zero/estimate.h"

namespace zero {

// Of a rank, but for activations and what else the program has.
std::int64_t Engine::Impl::needs(const Plan& plan) const {
  const Trace order = trace().value_or(Trace::sequential(layout_));
  return zero::estimate(plan, layout_, rules_, order, memory(), {}, options_.disk).held();
}

// The first of the plans that needs no more; empty where none does.
std::string Engine::Impl::plan_that_fits(std::int64_t room) const {
  const std::int64_t now = needs(plan_);
  for (const Plan& other : {Plan::zero1(), Plan::zero2(), Plan::zero3()}) {
    const Plan plan =
        Plan(other).precision(plan_.precision()).accumulate(plan_.accumulate()).reproducible(plan_.reproducible());
    const std::int64_t bytes = needs(plan);
    if (bytes < now && bytes <= room) return plan.label() + ", which needs " + std::to_string(bytes) + " bytes,";
  }
  return {};
}

OutOfMemoryError Engine::Impl::out_of_memory(const std::string& what, const char* during) const {
  const Device::Memory memory = accounts_.device().memory();
  const std::int64_t others = std::max<std::int64_t>(0, memory.taken - accounts_.snapshot().held());
  const std::string fitting = plan_that_fits(memory.all - others);
  const char* const then = broken_ != nullptr      ? "; this engine has to be built again"
                           : gradients_ == nullptr ? ""
                                                   : "; to repeat the step, call discard() first";
  return OutOfMemoryError(
      rank_text() + ": device '" + accounts_.device().name() + "' has no memory left in " + during + ": plan " +
          plan_.label() + " needs " + std::to_string(needs(plan_)) + " bytes; of " + std::to_string(memory.all) +
          ", activations and what else the program has there take " + std::to_string(others) + "; " + what,
      (fitting.empty() ? "no plan fits beside them on these ranks: use smaller micro-batches, or more ranks"
                       : "use " + fitting + " and fits beside them, or smaller micro-batches") +
          then);
}

}  // namespace zero
