// What it takes to keep the activations of a micro-batch within a budget: the time of what is computed again or waited
// for, and the least budget. By the replay that the engine's own plan comes of (partition/activation_plan.h). No torch.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "planner/llama_step.h"
#include "planner/profile.h"

namespace planner {

// Layers of a model that is gone through whole. Of a deeper one so many of its layers are, and half as many; what each
// layer more takes is the difference of the two.
inline constexpr std::int64_t kReplayedLayers = 8;

struct Recomputation {
  double seconds = 0;  // of a micro-batch
  double share = 0;    // of the time of all its operators
};
// Whether the list of operators says what could be dropped: not what products keep in 8 bits.
bool foresees_budget(const MicroBatch& work);

// How activations come back by a plan: by the profile's disks or link, as the engine takes them to be where that does
// not know.
zero::StoredWay stored_way(const zero::Plan& plan, const Profile& profile);

// Within the micro-batch's budget, which there is; none where it cannot be met, or is not foreseen.
std::optional<Recomputation> recomputation(const MicroBatch& work, const Pace& pace);

// Bytes, to about a hundredth of what is there without a budget.
std::int64_t least_activation_budget(const MicroBatch& work, const Pace& pace);

// recomputation(), or zeros without a budget. Throws zero::ConfigError where it is not foreseen, or cannot be met: by
// how much, and what needs most.
Recomputation price_of_budget(const MicroBatch& work, const Pace& pace);

}  // namespace planner
