#include "partition/tensor_faults.h"

#include <variant>

#include "base/codec.h"
#include "partition/full_tensor_owners.h"
#include "partition/moments.h"

namespace zero {

std::vector<std::string> tensor_faults(const Plan& plan) {
  std::vector<std::string> faults;
  if (plan.activation_budget()) faults.emplace_back("Plan::activation_budget: what is computed again is not cut");
  for (const State state : {State::parameter, State::gradient})
    if (has_codec(plan[state].wire))
      faults.push_back("the wire " + std::string(name(plan[state].wire)) + " of " + std::string(name(state)) +
                       ": its blocks span what is cut and what is not");
  if (plan.float8()) faults.emplace_back("Precision::fp8: products of parts have scales of the whole");
  return faults;
}

std::string tensor_fault(const Optimizer& optimizer) {
  if (moment_format(optimizer) == MomentFormat::block8) return "has moments in blocks of the whole";
  const bool whole = full_tensor_work(optimizer) || std::holds_alternative<TorchOptimizer>(optimizer);
  return whole ? "takes whole tensors" : "";
}

}  // namespace zero
