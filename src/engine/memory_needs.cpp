#include "engine/memory_needs.h"

#include <algorithm>

#include "zero/error.h"

namespace zero {

Memory MemoryNeeds::memory() const {
  if (!ranks_.device().is_host()) return Memory::device;
  return parameters_.any(&Unit::shared) ? Memory::common : Memory::separate;
}

Estimate MemoryNeeds::estimate() const {
  return estimate(trained_.plan(), ranks_.topologies());
}

Estimate MemoryNeeds::estimate(const Plan& plan, const Topologies& topologies) const {
  const Layout& layout = trained_.layout();
  const Trace trace = parameters_.micro_batch().trace().value_or(Trace::sequential(layout));
  return zero::estimate(plan, layout, trained_.rules(), trace, memory(), topologies, trained_.options().disk);
}

// Of a rank, but for activations and what else the program has.
std::int64_t MemoryNeeds::needs(const Plan& plan) const {
  return estimate(plan, ranks_.topologies()).held.peak_held;
}

// The first of the plans that needs no more; empty where none does.
std::string MemoryNeeds::plan_that_fits(std::int64_t room) const {
  const Plan& plan = trained_.plan();
  const std::int64_t now = needs(plan);
  for (const Plan& stage : {Plan::zero1(), Plan::zero2(), Plan::zero3()}) {
    const Plan other =
        Plan(stage).precision(plan.precision()).accumulate(plan.accumulate()).reproducible(plan.reproducible());
    const std::int64_t bytes = needs(other);
    if (bytes < now && bytes <= room) return other.label() + ", which needs " + std::to_string(bytes) + " bytes,";
  }
  return {};
}

OutOfMemoryError MemoryNeeds::exhausted(const std::string& what, const char* during, const char* then) const {
  const Plan& plan = trained_.plan();
  const Device& device = ranks_.device();
  const Device::Memory memory = device.memory();
  const std::int64_t others = std::max<std::int64_t>(0, memory.taken - ranks_.accounts().snapshot().held());
  const std::string fitting = plan_that_fits(memory.all - others);
  return OutOfMemoryError(
      "rank " + std::to_string(ranks_.rank()) + ": device '" + device.name() + "' has no memory left in " + during +
          ": plan " + plan.label() + " needs " + std::to_string(needs(plan)) + " bytes; of " +
          std::to_string(memory.all) + ", activations and what else the program has there take " +
          std::to_string(others) + "; " + what,
      (fitting.empty() ? "no plan fits beside them on these ranks: use smaller micro-batches, or more ranks"
                       : "use " + fitting + " and fits beside them, or smaller micro-batches") +
          then);
}

}  // namespace zero
