// Joins the ranks that a launcher started over what connects them.
#pragma once

#include "zero/world.h"

namespace zero {

// As init(), with options that nothing overrides any more.
World join_world(const InitOptions& options);

}  // namespace zero
