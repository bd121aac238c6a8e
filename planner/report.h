// A planner's answer as JSON. No torch.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "planner/deepspeed.h"
#include "planner/price.h"

namespace planner {

// What is known of one plan's reach; only with a device's memory.
struct Reach {
  std::vector<std::string> reasons;     // why it does not fit
  std::int64_t largest_parameters = 0;  // of decoders of usual proportions; 0: none fits
  std::int64_t largest_batch = 0;       // of this model
  int least_ranks = 0;                  // 0: no number of ranks will do
};

struct Answer {
  Request request;
  std::string model;      // as it was named; empty: a count of parameters
  std::string optimizer;  // as it was named
  std::vector<Cost> costs = {};
  std::vector<Reach> reach = {};            // of each cost; empty without a device's memory
  std::optional<DeepSpeed> deepspeed = {};  // where the setting came from a configuration of DeepSpeed
};

Answer answer(Request request, std::string model, std::string optimizer);

// Sentences: what was assumed about the model and the machine.
std::vector<std::string> assumptions(const Answer& answer);

// {"ranks", "parameters", "plans": [{"plan", "parameter_bytes", ...}]}.
std::string to_json(const Answer& answer);

}  // namespace planner
