#include "zero/units.h"

#include <algorithm>
#include <utility>

namespace zero {
namespace {

// Part by part of a path; "*" stands for any one.
bool matches(std::string_view pattern, std::string_view name) {
  const auto next = [](std::string_view& path) {
    const std::size_t dot = std::min(path.find('.'), path.size());
    const std::string_view part = path.substr(0, dot);
    path.remove_prefix(std::min(dot + 1, path.size()));
    return part;
  };
  if (std::ranges::count(pattern, '.') != std::ranges::count(name, '.')) return false;
  while (!pattern.empty() && !name.empty()) {
    const std::string_view wanted = next(pattern), part = next(name);
    if (wanted != "*" && wanted != part) return false;
  }
  return pattern.empty() && name.empty();
}

}  // namespace

UnitRule units_in_containers() {
  return [](const ModuleInfo& module) { return module.in_container && !module.container; };
}

UnitRule units_of_types(std::vector<std::string> types) {
  return [types = std::move(types)](const ModuleInfo& module) { return std::ranges::count(types, module.type) > 0; };
}

UnitRule units_named(std::vector<std::string> names) {
  return [names = std::move(names)](const ModuleInfo& module) {
    return std::ranges::any_of(names, [&](const std::string& name) { return matches(name, module.name); });
  };
}

UnitRule units_by_size(std::int64_t least, std::int64_t most) {
  return [=](const ModuleInfo& module) { return module.numel >= least && module.numel <= most; };
}

}  // namespace zero
