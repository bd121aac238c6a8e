// What a micro-batch keeps for its backward. No torch.
#pragma once

#include <cstdint>
#include <string>

#include "models/llama_config.h"
#include "zero/plan.h"

namespace planner {

// The largest sum alive at once in one micro-batch on one rank, and when.
struct Activations {
  std::int64_t bytes = 0;
  std::string moment;
};
Activations activations(const models::LlamaConfig& config, std::int64_t batch, std::int64_t seq,
                        zero::Precision precision);

}  // namespace planner
