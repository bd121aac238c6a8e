// How long a step takes, by a model of the machine. No torch.
#pragma once

#include <cstdint>

#include "models/llama_config.h"
#include "planner/profile.h"
#include "zero/estimate.h"
#include "zero/plan.h"

namespace planner {

struct Work {
  models::LlamaConfig config;
  std::int64_t batch = 1;  // sequences of a micro-batch
  std::int64_t seq = 1;    // tokens of a sequence
};
double step_seconds(const Work& work, const zero::Plan& plan, const zero::Estimate& estimate, const Profile& profile,
                    int ranks, int hosts);

}  // namespace planner
