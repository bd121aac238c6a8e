// The optimizers and learning-rate schedules that the command line knows by name.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/options/options.h"
#include "models/json.h"
#include "zero/optimizer.h"
#include "zero/schedule.h"

namespace cli {

std::vector<std::string> optimizer_names();
std::vector<std::string> schedule_names();

// With that learning rate, --lr, or else one that suits it.
zero::Optimizer make_optimizer(const std::string& name, std::optional<double> lr = {});
zero::Optimizer make_optimizer(const RunOptions& options);
zero::Schedule make_schedule(const RunOptions& options);

// What a run was asked for, for its report, as far as numbers depend on it and its plan, model and optimizer do not say
// so: as the options have these names; defaults are resolved.
models::Json setting_of(const RunOptions& options);

}  // namespace cli
