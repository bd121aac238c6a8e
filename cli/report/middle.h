// What stands for several measurements.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

namespace cli {

// The value that so much of the others is not above. By itself, of an odd number of values the median, of an even one
// the larger of the two in the middle.
inline double middle(std::vector<double> values, double quantile = 0.5) {
  const auto place = values.begin() + std::lround(static_cast<double>(values.size() - 1) * quantile);
  std::nth_element(values.begin(), place, values.end());
  return *place;
}

}  // namespace cli
