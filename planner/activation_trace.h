// A micro-batch of models::Llama as a trace of operators, such as the engine records: what the plan within a budget is
// made of. No torch.
#pragma once

#include <string>
#include <vector>

#include "partition/operator_trace.h"
#include "planner/llama_step.h"
#include "planner/profile.h"

namespace planner {

struct ActivationTrace {
  zero::OperatorTrace operators;
  std::vector<std::string> names;  // of each
};

// `pace` says how long each operator takes.
ActivationTrace activation_trace(const MicroBatch& work, const Pace& pace);

}  // namespace planner
