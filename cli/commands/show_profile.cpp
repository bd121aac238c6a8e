#include <iostream>

#include "cli/commands/commands.h"
#include "planner/profile.h"

namespace cli {

int show_profile(const std::string& name) {
  std::cout << planner::to_json(planner::profile_named(name));
  return 0;
}

}  // namespace cli
