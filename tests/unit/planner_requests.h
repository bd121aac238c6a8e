// What tests ask of the planner, and what its sentences say.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "planner/price.h"

namespace planner {

// Every stage in bf16, on the ranks of h100s.
inline Request request_of(Shape shape, int ranks, std::optional<std::int64_t> device_memory = {}, int accumulate = 1) {
  Request request{
      .shape = std::move(shape), .ranks = ranks, .device_memory = device_memory, .profile = profile_named("h100")};
  for (const std::string_view preset : zero::Plan::stages())
    request.plans.push_back(zero::Plan::named(preset).bf16().accumulate(accumulate));
  return request;
}

inline bool mentions(const std::vector<std::string>& sentences, std::string_view words) {
  return std::ranges::any_of(sentences, [&](const auto& each) { return each.find(words) != std::string::npos; });
}

}  // namespace planner
