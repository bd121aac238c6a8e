#include "planner/seconds.h"

namespace planner {

double step_seconds(const Work&, const zero::Plan&, const zero::Estimate&, const Profile&, int, int) {
  return 0;
}

}  // namespace planner
