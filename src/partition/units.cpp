#include "zero/units.h"

#include <algorithm>
#include <utility>

#include "base/paths.h"

namespace zero {
UnitRule units_in_containers() {
  return [](const ModuleInfo& module) { return module.in_container && !module.container; };
}

UnitRule units_of_types(std::vector<std::string> types) {
  return [types = std::move(types)](const ModuleInfo& module) { return std::ranges::count(types, module.type) > 0; };
}

UnitRule units_named(std::vector<std::string> names) {
  return [names = std::move(names)](const ModuleInfo& module) {
    return std::ranges::any_of(names, [&](const std::string& name) { return path_matches(name, module.name); });
  };
}

UnitRule units_by_size(std::int64_t least, std::int64_t most) {
  return [=](const ModuleInfo& module) { return module.numel >= least && module.numel <= most; };
}

}  // namespace zero
