// What a run is going to cost, before its first step.
#pragma once

#include "options.h"
#include "report.h"
#include "work.h"
#include "zero/engine.h"

namespace cli {

// Fills in what `result` predicts. Throws zero::ConfigError where --profile cannot be used.
void predict(const zero::Engine& engine, const RunOptions& options, const Work& work, int ranks, RunResult& result);

}  // namespace cli
