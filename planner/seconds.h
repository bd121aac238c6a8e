// How long a step takes, by a model of the machine. No torch.
#pragma once

#include <array>
#include <vector>

#include "planner/llama_step.h"
#include "planner/profile.h"
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

  double seconds(const Pace& pace) const;
};
Labour labour_of(const MicroBatch& work);

struct Ranks {
  int count = 1;
  int hosts = 1;
  zero::Memory memory = zero::Memory::separate;
};

// Of a step's micro-batches. Those after which gradients are not reduced wait for nobody.
double computing_seconds(const MicroBatch& work, const zero::Plan& plan, const Pace& pace, int ranks);

// `estimate` of the same plan. Sums up computing, the update and the collectives that computing does not hide.
double step_seconds(const MicroBatch& work, const zero::Plan& plan, const zero::Estimate& estimate,
                    const Profile& profile, const Ranks& ranks);

// Of the collectives alone, hidden or not.
double collective_seconds(const zero::Plan& plan, const zero::Estimate& estimate, const Profile& profile,
                          const Ranks& ranks);

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
