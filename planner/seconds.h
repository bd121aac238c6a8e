// How long a step takes, by a model of the machine. No torch.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "planner/llama_step.h"
#include "planner/profile.h"
#include "planner/tensor_wire.h"
#include "zero/estimate.h"
#include "zero/plan.h"

namespace planner {

// What the time of a micro-batch is made of; times a Pace's reciprocals it is seconds.
struct Labour {
  double matrix_flops = 0;
  double matrix_bytes = 0;  // read and written by products of matrices
  double attention_flops = 0;
  double sweep_bytes = 0;
  double operators = 0;

  // Of operators: see StepListener.
  void add_product(zero::Precision precision, std::int64_t m, std::int64_t n, std::int64_t k);
  void add_attention(double flops);
  void add_sweep(std::int64_t bytes);

  double seconds(const Pace& pace) const;
};
Labour labour_of(const MicroBatch& work);

// Of a step's micro-batches, each with so many seconds of what is computed again. Those after which gradients are not
// reduced wait for nobody.
double computing_seconds(const MicroBatch& work, const zero::Plan& plan, const Pace& pace, const zero::MeshShape& mesh,
                         double again = 0);

// What between tiers takes a step's time, by when it happens. Of the update, of which reading, updating and writing go
// on at once, the slowest counts.
struct TierSeconds {
  double beside = 0;  // the micro-batches' computing: parameters that are read ahead, sums over ranks that are kept
  double alone = 0;   // in backward and in the vote, of which the thread that trains waits for the end
  double reading = 0, updating = 0, writing = 0;

  double update() const { return std::max({reading, updating, writing}); }
};
TierSeconds tier_seconds(const zero::Plan& plan, const zero::Estimate& estimate, const Profile& profile,
                         const zero::MeshShape& mesh);
// Keys of the profile that it does not have and the plan's tiers need; empty where they are priced.
std::vector<std::string> missing_for_tiers(const zero::Plan& plan, const Profile& profile);

// `estimate` of the same plan. Sums up computing, the update, and of the collectives and of what moves between tiers
// what computing does not hide. Not meant where something is missing for its tiers. `again`: see computing_seconds().
double step_seconds(const MicroBatch& work, const zero::Plan& plan, const zero::Estimate& estimate,
                    const Profile& profile, const zero::MeshShape& mesh, double again = 0);

// Floating-point operations for a token of a sequence, forward and backward, as PaLM counts them: 6 Psi, and for
// attention to all tokens of the sequence 12 L H Q T, of L layers, H heads of size Q and T tokens (Chowdhery et al.,
// 2022, "PaLM: Scaling Language Modeling with Pathways", appendix B). What is computed again, or left out since it
// would be masked, changes nothing.
double model_flops(const models::LlamaConfig& config, std::int64_t parameters, std::int64_t seq);

struct Speed {
  double tokens_per_second = 0;  // of all ranks
  // Model flops utilization: model_flops() of the tokens that a rank trains in a second, over its peak; as PaLM defines
  // it, ibid. None where the profile does not know the peak.
  std::optional<double> utilization = {};
};
// Of steps that take so long.
Speed speed_of(const MicroBatch& work, const zero::Plan& plan, std::int64_t parameters, double seconds,
               const Profile& profile, int ranks);

// Of what goes along a tensor axis, for which operators wait; within a host.
double tensor_seconds(const TensorWire& wire, const Profile& profile);

// Of the collectives alone, hidden or not.
double collective_seconds(const zero::Estimate& estimate, const Profile& profile);

// The Pace, without negative times, that comes closest to the measured seconds, in relative terms.
struct Measured {
  Labour labour;
  double seconds = 0;
};
Pace fitted(const std::vector<Measured>& runs);

// Pace::waiting, from the measured computing of a step of which only the last of `accumulate` micro-batches has its
// gradients reduced, and of one of a single micro-batch.
double waiting_of(double accumulated, double once, int accumulate);

}  // namespace planner
