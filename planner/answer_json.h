// A planner's answer as JSON. No torch.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "planner/deepspeed.h"
#include "planner/fit.h"
#include "planner/price.h"

namespace planner {

struct Answer {
  Request request;
  std::string model;              // as it was named; empty: a count of parameters
  std::string optimizer;          // as it was named
  std::string profile_file = {};  // empty: a given profile
  std::string command = {};
  std::vector<Cost> costs = {};
  std::vector<Reach> reach = {};            // of each cost; empty without a device's memory
  std::optional<DeepSpeed> deepspeed = {};  // where the setting came from a configuration of DeepSpeed
};

Answer answer(Request request, std::string model, std::string optimizer);

// Sentences: what was assumed about the model and the machine.
std::vector<std::string> assumptions(const Answer& answer);

// See docs/json.md.
std::string to_json(const Answer& answer);

}  // namespace planner
