// What a run is going to cost, before its first step.
#pragma once

#include "cli/options/options.h"
#include "cli/report/report.h"
#include "cli/training/work.h"
#include "zero/engine.h"

namespace cli {

// Fills in what `result` predicts. Throws zero::ConfigError where --profile cannot be used; where what was measured on
// this machine cannot, the first rank says so on standard error.
void predict(const zero::Engine& engine, const RunOptions& options, const Work& work, const zero::World& world,
             RunResult& result);

}  // namespace cli
