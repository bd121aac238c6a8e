// Estimates of layouts in which a unit stands for several alike, as the layers of a deep model are. No torch.
#pragma once

#include <cstdint>
#include <vector>

#include "zero/estimate.h"

namespace zero {

// By unit of a layout: so many of it follow each other. Those are its occurrences; they are numbered through, units in
// order.
using Repeats = std::vector<std::int64_t>;

// The estimate of the layout in which every occurrence is a unit of its own, without the work of making one. The
// trace touches occurrences, and Estimate::slices are those of occurrences.
Estimate estimate(const Plan& plan, const Layout& layout, const std::vector<ParameterRule>& rules,
                  const Repeats& repeats, const Trace& trace, Memory memory, const Topologies& topologies = {},
                  const DiskOptions& disk = {});

}  // namespace zero
