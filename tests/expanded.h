// A planner's shape with every layer by itself, as the engine finds them: what takes long, to compare with.
#pragma once

#include <string>

#include "planner/shape.h"

namespace planner {

// "model.layers.0" as the i-th of its occurrences.
inline std::string numbered(const std::string& unit, std::int64_t i) {
  return i == 0 ? unit : unit.substr(0, unit.find_last_not_of("0123456789") + 1) + std::to_string(i);
}

inline Shape expanded(const Shape& shape) {
  Shape result = shape;
  result.infos.clear();
  result.units.clear();
  result.repeats.clear();
  std::size_t unit = 0;
  for (std::size_t begin = 0, end = 0; begin < shape.infos.size(); begin = end, ++unit) {
    while (end < shape.infos.size() && shape.units[end] == shape.units[begin]) ++end;
    const std::int64_t times = unit < shape.repeats.size() ? shape.repeats[unit] : 1;
    for (std::int64_t i = 0; i < times; ++i)
      for (std::size_t at = begin; at < end; ++at) {
        const std::string name = numbered(shape.units[at], i);
        result.infos.push_back(shape.infos[at]);
        result.infos.back().name = name + shape.infos[at].name.substr(shape.units[at].size());
        result.units.push_back(name);
      }
  }
  return result;
}

}  // namespace planner
