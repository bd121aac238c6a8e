#include "timeline.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

namespace cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array<const char*, 3> kPhases{"forward", "backward", "step"};
constexpr std::size_t kMostSamples = 800;

bool is_phase(const zero::MemoryActivity& activity) {
  return activity.unit.empty() && std::ranges::find(kPhases, activity.name) != kPhases.end();
}

Json encode(const zero::MemorySample& sample) {
  Json row = Json::array({sample.at});
  for (const std::int64_t bytes : sample.owners) row.push_back(bytes);
  return row;
}

// As many neighbours become the largest of them as it takes.
Json samples(const std::vector<zero::MemorySample>& all) {
  const std::size_t together = all.size() / kMostSamples + 1;
  Json rows = Json::array();
  for (std::size_t begin = 0; begin < all.size(); begin += together) {
    const auto first = all.begin() + static_cast<std::ptrdiff_t>(begin);
    const auto last = all.begin() + static_cast<std::ptrdiff_t>(std::min(begin + together, all.size()));
    rows.push_back(encode(*std::max_element(first, last, [](const zero::MemorySample& a, const zero::MemorySample& b) {
      return a.allocated < b.allocated;
    })));
  }
  return rows;
}

}  // namespace

std::string timeline_of(const zero::MemoryReport& report) {
  Json owners = Json::array(), phases = Json::array(), activities = Json::array();
  for (int i = 0; i < zero::kMemoryOwners; ++i) owners.push_back(name(static_cast<zero::MemoryOwner>(i)));
  for (const zero::MemoryActivity& each : report.activities) {
    if (is_phase(each)) phases.push_back({{"phase", each.name}, {"begin", each.begin}, {"end", each.end}});
    activities.push_back({{"name", each.name},
                          {"unit", each.unit},
                          {"thread", each.thread == 0 ? "main" : "exchange"},
                          {"begin", each.begin},
                          {"end", each.end}});
  }
  return Json{{"owners", owners}, {"samples", samples(report.timeline)}, {"phases", phases}, {"activities", activities}}
      .dump();
}

}  // namespace cli
