// What the choices of a scenario mean.
#pragma once

#include <string>
#include <vector>

#include "ranks/scenario/scenario.h"
#include "zero/zero.h"

namespace zero::test::scenario {

std::vector<std::string> names_of_optimizers();
std::int64_t width_of(const Scenario& scenario);
Precision precision_of(const Scenario& scenario);
bool delays(const Scenario& scenario);
MeshShape mesh_of(const Scenario& scenario, int plan);
Plan plan_of(const Scenario& scenario, int plan);
Optimizer optimizer_of(const Scenario& scenario);
Options options_of(const Scenario& scenario, const std::string& folder);

// Whether a plan that is used has parameters travel in 8 bits.
bool gathers_in_codes(const Scenario& scenario);
// Such moments depend on what is in a unit, and is frozen when the engine is built.
bool in_blocks_of_8_bits(const Scenario& scenario);
bool in_16_bits(const Scenario& scenario);
// Whether LibTorch has an optimizer that does what the rules of the scenario say; to how many digits.
bool has_plain_optimizer(const Scenario& scenario);
double plain_tolerance(const Scenario& scenario);
// About that of a product's operands.
double plain_rounding(const Scenario& scenario);
// Whether magnitudes are scaled by those of steps before, beyond which they are cut off.
bool saturates(const Scenario& scenario);

// The run that has the same bits, by docs/concepts.md: ddp, in memory; where sums over micro-batches have another
// order, zero2.
struct Reference {
  Scenario scenario;
  bool other_order = false;  // in which micro-batches go to ranks, where that changes no bit of a step
};
Reference reference_of(const Scenario& scenario);

}  // namespace zero::test::scenario
