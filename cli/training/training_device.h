// The device that --device means, among those that there are.
#pragma once

#include <c10/core/Device.h>

#include <string>

#include "cli/options/eval_options.h"
#include "cli/options/options.h"
#include "zero/world.h"

namespace cli {

// The same, with the device that was left open, also in the command that is recorded. Throws UsageError where there is
// no such device, saying what there is.
RunOptions with_device(RunOptions options);
EvalOptions with_device(EvalOptions options);

// That of a rank. Throws UsageError likewise.
c10::Device device_of(const zero::World& world, const std::string& name);

}  // namespace cli
