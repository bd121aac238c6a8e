#include "cli/training/step_timeline.h"

#include <algorithm>
#include <array>

namespace cli {
namespace {

using models::Json;

constexpr std::array<const char*, 3> kPhases{"forward", "backward", "step"};
constexpr std::size_t kMostSamples = 800;

bool is_phase(const zero::MemoryActivity& activity) {
  return activity.unit.empty() && std::ranges::find(kPhases, activity.name) != kPhases.end();
}

// As many neighbours become the largest of them, from the first one's time on, as it takes.
Json samples(const std::vector<zero::MemorySample>& all, double start) {
  const std::size_t together = all.size() / kMostSamples + 1;
  Json rows = Json::array();
  for (std::size_t begin = 0; begin < all.size(); begin += together) {
    const auto first = all.begin() + static_cast<std::ptrdiff_t>(begin);
    const auto last = all.begin() + static_cast<std::ptrdiff_t>(std::min(begin + together, all.size()));
    rows.push_back(Json::array({first->at - start}));
    for (const std::int64_t bytes : std::ranges::max_element(first, last, {}, &zero::MemorySample::allocated)->owners)
      rows.back().push_back(bytes);
  }
  return rows;
}

}  // namespace

Json timeline_of(const zero::MemoryReport& report) {
  Json owners = Json::array(), phases = Json::array(), activities = Json::array();
  for (int i = 0; i < zero::kMemoryOwners; ++i) owners.push_back(name(static_cast<zero::MemoryOwner>(i)));
  const double start = report.timeline.empty() ? 0 : report.timeline.front().at;
  for (const zero::MemoryActivity& each : report.activities) {
    const double begin = each.begin - start, end = each.end - start;
    if (is_phase(each)) phases.push_back({{"phase", each.name}, {"begin", begin}, {"end", end}});
    activities.push_back({{"name", each.name},
                          {"unit", each.unit},
                          {"thread", each.thread == 0 ? "main" : "exchange"},
                          {"begin", begin},
                          {"end", end}});
  }
  const Json bytes = samples(report.timeline, start);
  return Json{{"owners", owners}, {"samples", bytes}, {"phases", phases}, {"activities", activities}};
}

}  // namespace cli
