// What a step pages in: the pager's policy, gone through without the pager. No torch.
#pragma once

#include <cstdint>
#include <vector>

#include "zero/estimate.h"
#include "zero/plan.h"

namespace zero {

struct Paging {
  std::vector<std::int64_t> gathers;  // by unit: how often in a step
  std::int64_t most = 0;              // bytes that are resident once one is gathered
};

// Of units of so many bytes, in all micro-batches of a step. Throws ConfigError where the trace touches others.
Paging paging(const Plan& plan, const std::vector<std::int64_t>& unit_bytes, const Trace& trace);

}  // namespace zero
