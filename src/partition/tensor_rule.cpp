#include "zero/tensor_rule.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "base/paths.h"

namespace zero {

TensorRule tensor_named(std::vector<std::pair<std::string, TensorCut>> modules) {
  return [modules = std::move(modules)](const ParameterInfo& parameter) -> std::optional<TensorCut> {
    const std::string_view name(parameter.name);
    const std::string_view module = name.substr(0, std::min(name.rfind('.'), name.size()));
    for (const auto& [pattern, cut] : modules)
      if (path_ends_as(pattern, module)) return cut;
    return {};
  };
}

}  // namespace zero
