// How fast the ranks' states on disk are read and written.
#pragma once

#include <string>
#include <vector>

#include "planner/profile.h"
#include "zero/world.h"

namespace cli {

// Through a store in these folders for each rank, while all of them use theirs: the slowest rank's, into the profile.
// Collective. Throws zero::StoreError.
void profile_disk(const zero::World& world, const std::vector<std::string>& folders, planner::Profile& profile);

}  // namespace cli
