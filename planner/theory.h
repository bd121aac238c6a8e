// What the ZeRO paper says that a plan holds and exchanges, and what else of a plan's table is for people. No torch.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "zero/plan.h"

namespace planner {

// Without padding and the step's small messages.
struct Theory {
  std::string state;  // bytes of a rank, as a formula: "4 Ψ + 12 Ψ / N", of shard groups of S ranks "16 Ψ / S"
  std::int64_t state_bytes = 0;
  // Elements that a rank exchanges in a step, but for the factor (N - 1) / N: "2 Ψ"; within shard groups and across
  // them: "3 Ψ + 2 Ψ / S".
  std::string volume;
  std::int64_t volume_bytes = 0;
};

// Of a plan as it is on a mesh (Plan::on), by its routes (ZeRO, sections 5 and 7): a unit that operators
// read is gathered in forward and in backward. `held`: bytes that the optimizer keeps of a parameter, its moments and
// what Plan::remainder_bytes says.
Theory theory_of(const zero::Plan& plan, std::int64_t parameters, const zero::MeshShape& mesh, double held);

// Ranks among which a copy of a state is divided between micro-batches: all of them, those of a shard group, or 1 where
// each holds it whole.
int divided_among(const zero::Plan& plan, zero::State state, const zero::MeshShape& mesh);

// Whether gradients are reduced in each micro-batch; else their sum, once.
bool reduces_each(const zero::Plan& plan);

// Where a state is, in words: between micro-batches, and at rest.
std::pair<std::string, std::string> places_of(const zero::Plan& plan, zero::State state);

}  // namespace planner
