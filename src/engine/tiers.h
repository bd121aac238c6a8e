// Which tiers an engine's states may have.
#pragma once

#include <c10/core/Device.h>

#include "zero/engine.h"

namespace zero {

// The options. Throws ConfigError for a tier of the plan's that they, or a model on this device, have not.
Options with_tiers(const Plan& plan, Options options, c10::Device where);

}  // namespace zero
