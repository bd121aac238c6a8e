#include "planner/offload.h"

#include <sstream>

#include "base/text.h"
#include "zero/error.h"

namespace planner {

zero::Plan offloaded(zero::Plan plan, const std::string& text) {
  std::istringstream parts(text);
  for (std::string part; std::getline(parts, part, ',');) {
    const std::size_t equals = part.find('=');
    if (equals == std::string::npos)
      throw zero::ConfigError(zero::in_quotes(part) + " says no tier", "write STATE=TIER, as in optimizer=disk");
    plan = plan.offload(zero::state_named(part.substr(0, equals)), zero::tier_named(part.substr(equals + 1)));
  }
  return plan;
}

}  // namespace planner
