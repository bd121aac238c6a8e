#include "zero/estimate.h"

namespace zero {

Trace Trace::sequential(const Layout& layout) {
  const std::vector<UnitLayout>& units = layout.units();
  const int count = static_cast<int>(units.size());
  Trace trace;
  const auto touch = [&](int unit) {
    if (trace.touches.empty() || trace.touches.back() != unit) trace.touches.push_back(unit);
  };
  for (int i = 0; i < count; ++i) {
    if (units[static_cast<std::size_t>(i)].length() > 0) touch(i);
  }
  for (int i = count - 1; i >= 0; --i) {
    if (units[static_cast<std::size_t>(i)].read_in_backward()) touch(i);
  }
  return trace;
}

}  // namespace zero
