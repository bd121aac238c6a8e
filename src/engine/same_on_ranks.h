// What the ranks must have in common before their first exchange.
#pragma once

#include <string>
#include <vector>

#include "engine/module_inventory.h"
#include "zero/communicator.h"
#include "zero/engine.h"
#include "zero/layout.h"
#include "zero/optimizer.h"
#include "zero/plan.h"

namespace zero {

// One line for each thing that the ranks must share: the plan's columns, settings, the schedule at some steps,
// parameters, their order in memory and what updates them, buffers. `infos` and `rules` by parameter of the inventory.
std::vector<std::string> description(const Plan& plan, const Inventory& inventory,
                                     const std::vector<ParameterInfo>& infos, const std::vector<ParameterRule>& rules,
                                     const Options& options);

// By which ranks of the same lines find each other.
std::string agreement_key(const std::vector<std::string>& lines);

// Throws CommError on every rank when their lines differ, telling what each has in the first such line. Collective.
void require_agreement(const Communicator& communicator, const std::vector<std::string>& lines);

}  // namespace zero
