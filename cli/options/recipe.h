// The optimizers and learning-rate schedules that the command line knows by name.
#pragma once

#include <string>
#include <vector>

#include "cli/options/options.h"
#include "cli/report/run_setting.h"
#include "zero/optimizer.h"
#include "zero/schedule.h"

namespace cli {

std::vector<std::string> optimizer_names();
std::vector<std::string> schedule_names();

// With the learning rate of --lr, or else one that suits it.
zero::Optimizer make_optimizer(const RunOptions& options);
zero::Schedule make_schedule(const RunOptions& options);

// For the report.
RunSetting setting_of(const RunOptions& options);

}  // namespace cli
