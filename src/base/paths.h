// Names of modules as paths: "layers.3.up".
#pragma once

#include <algorithm>
#include <string_view>

namespace zero {

// Part by part of a path; "*" stands for any one.
inline bool path_matches(std::string_view pattern, std::string_view name) {
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

// The same, but that "*." in front stands for any beginning, or none.
inline bool path_ends_as(std::string_view pattern, std::string_view name) {
  if (!pattern.starts_with("*.")) return path_matches(pattern, name);
  pattern.remove_prefix(2);
  const auto parts = std::ranges::count(pattern, '.');
  while (std::ranges::count(name, '.') > parts) name.remove_prefix(name.find('.') + 1);
  return path_matches(pattern, name);
}

}  // namespace zero
