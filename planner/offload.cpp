#include "planner/offload.h"

#include <array>
#include <sstream>

#include "base/text.h"
#include "zero/error.h"

namespace planner {
namespace {

// As they are worth it: an optimizer's state is the largest, and is touched once a step.
constexpr std::array kOrder{zero::State::optimizer, zero::State::gradient, zero::State::parameter};

}  // namespace

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

std::string offload_of(const zero::Plan& plan) {
  std::string text;
  for (const zero::State state : kOrder)
    if (const zero::Tier tier = plan[state].tier; tier != zero::Tier::device)
      text += (text.empty() ? "" : ",") + std::string(name(state)) + "=" + std::string(name(tier));
  return text;
}

std::vector<zero::Plan> tier_choices(const zero::Plan& plan, const std::vector<zero::Tier>& tiers,
                                     const zero::MeshShape& mesh) {
  std::vector<zero::Plan> choices, latest{plan};
  for (const zero::State state : kOrder) {
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
