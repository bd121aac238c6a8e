// A planner's answer as text. No torch.
#pragma once

#include <iosfwd>

#include "planner/answer_json.h"

namespace cli {

// What each plan costs, how far it goes, and what was assumed.
void print_plans(std::ostream& out, const planner::Answer& answer);
// The plans that fit, in order, and why the others do not.
void print_fit(std::ostream& out, const planner::Answer& answer);

}  // namespace cli
