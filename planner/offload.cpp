#include "planner/offload.h"

#include <array>
#include <set>
#include <sstream>

#include "base/number.h"
#include "base/text.h"
#include "zero/error.h"

namespace planner {
namespace {

// As they are worth it: an optimizer's state is the largest, and is touched once a step.
constexpr std::array kOrder{zero::State::optimizer, zero::State::gradient, zero::State::parameter};

double share_of(const std::string& part, const std::string& text) {
  const auto read = zero::read_number<double>(text, 0, 1);
  if (!read.fault.empty())
    throw zero::ConfigError("the share in " + zero::in_quotes(part) + ": " + read.fault,
                            "write STATE=TIER:SHARE, as in optimizer=host:0.8");
  return read.value;
}

}  // namespace

zero::Plan offloaded(zero::Plan plan, const std::string& text) {
  std::istringstream parts(text);
  std::set<zero::State> said;
  for (std::string part; std::getline(parts, part, ',');) {
    const std::size_t equals = part.find('=');
    if (equals == std::string::npos)
      throw zero::ConfigError(zero::in_quotes(part) + " says no tier", "write STATE=TIER, as in optimizer=disk");
    const std::size_t colon = part.find(':', equals);
    const zero::State state = zero::state_named(part.substr(0, equals));
    if (!said.insert(state).second)
      throw zero::ConfigError("the " + std::string(name(state)) + " has two tiers in " + zero::in_quotes(text),
                              "name each state once");
    const double share = colon == std::string::npos ? 1 : share_of(part, part.substr(colon + 1));
    plan = plan.offload(state, zero::tier_named(part.substr(equals + 1, colon - equals - 1)), share);
  }
  return plan;
}

std::string offload_of(const zero::Plan& plan) {
  std::string text;
  for (const zero::State state : kOrder)
    if (const zero::Row& row = plan[state]; row.tier != zero::Tier::device)
      text += (text.empty() ? "" : ",") + std::string(name(state)) + "=" + std::string(name(row.tier)) +
              (row.share == 1 ? "" : ":" + zero::shortest(row.share));
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
