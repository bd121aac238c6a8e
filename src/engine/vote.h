// The one small exchange of a step: gradient norm, overflow, losses, which parameters received gradients, and what the
// program wants all ranks to know, agreed on by all ranks before any of them updates.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "engine/step_sums.h"
#include "partition/accumulation_order.h"
#include "zero/communicator.h"
#include "zero/plan.h"

namespace zero {

inline constexpr int kRateBits = 30;

struct StepSummary {
  StepSums::Values sums;       // of this rank's slices of the summed gradients, and of its micro-batches
  std::vector<char> present;   // by parameter
  std::uint32_t requests = 0;  // see Engine::request
  bool save_ended = false;     // one in the background
  std::uint32_t rates = 0;     // what tells the parameters' learning rates from others, kRateBits of it
};

struct StepDecision {
  double norm = 0;  // of the summed, not yet averaged gradient
  bool overflow = false;
  double loss = 0;                      // summed over the global batch, along the tree over the micro-batch's index
  std::vector<char> present;            // on any rank
  std::vector<double> largest;          // magnitudes, see StepSums
  std::uint32_t requests = 0;           // of any rank
  bool save_ended = false;              // on all
  std::optional<int> other_rates = {};  // a rank whose learning rates are not rank 0's
};

// A summary as words on the wire, and the ranks' words, in the order of their slices (MeshShape::slice_of), for each of
// `places` along the tensor axis, as a decision.
std::vector<std::int64_t> pack(StepSummary& summary, const Plan& plan);
StepDecision count(const std::vector<std::int64_t>& table, const Plan& plan, const MeshShape& mesh, int places,
                   std::size_t parameters);

}  // namespace zero
