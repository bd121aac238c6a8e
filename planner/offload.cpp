#include "planner/offload.h"

#include "partition/plan_settings.h"

namespace planner {

std::vector<zero::Plan> tier_choices(const zero::Plan& plan, const std::vector<zero::Tier>& tiers,
                                     const zero::MeshShape& mesh) {
  std::vector<zero::Plan> choices, latest{plan};
  for (const zero::State state : zero::kOffloadOrder) {
    std::vector<zero::Plan> more;
    for (const zero::Plan& before : latest)
      for (const zero::Tier tier : tiers) more.push_back(before.offload(state, tier));
    choices.insert(choices.end(), more.begin(), more.end());
    latest = std::move(more);
  }
  std::erase_if(choices, [&](const zero::Plan& choice) { return !choice.faults(mesh).empty(); });
  return choices;
}

}  // namespace planner
