// What a run is going to cost, before its first step.
#pragma once

#include <string>

#include "cli/options/options.h"
#include "cli/report/report.h"
#include "cli/training/work.h"
#include "zero/engine.h"

namespace cli {

// Fills in what `result` predicts. Throws zero::ConfigError where --profile cannot be used; where what was measured on
// this machine cannot, the first rank says so on standard error.
void predict(const zero::Engine& engine, const RunOptions& options, const Work& work, const zero::World& world,
             RunResult& result);

// What brings codes of a state, "parameter" or "gradient".
zero::Collective carrier_of_codes(const std::string& state);

// The plan whose budget for activations, where it is a share, is of what they are foreseen to take: so that the first
// micro-batch keeps to it too.
zero::Plan with_budget_in_bytes(const zero::Plan& plan, const RunOptions& options, const Work& work);

}  // namespace cli
