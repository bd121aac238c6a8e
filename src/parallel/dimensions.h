// Dimensions as operators name them.
#pragma once

#include <ATen/core/ivalue.h>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace zero::sharded_rules {

// From the front; of `dims` dimensions, of which a tensor without any has one.
inline std::int64_t from_front(std::int64_t dim, std::int64_t dims) {
  return dim < 0 ? dim + std::max<std::int64_t>(dims, 1) : dim;
}

// Of a list that is none, or empty, where that means all: all.
inline std::vector<std::int64_t> dims_of(const c10::IValue& value, std::int64_t dims) {
  std::vector<std::int64_t> list;
  if (value.isInt()) list.push_back(value.toInt());
  if (value.isIntList()) list = value.toIntVector();
  for (std::int64_t& dim : list) dim = from_front(dim, dims);
  if (list.empty())
    for (std::int64_t dim = 0; dim < dims; ++dim) list.push_back(dim);
  return list;
}

}  // namespace zero::sharded_rules
