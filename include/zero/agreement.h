// What ranks that were started apart have in common. No torch.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "zero/communicator.h"

namespace zero {

struct Disagreement {
  std::size_t line = 0;
  std::string values;  // "rank 0 has A; rank 1 has B", each shortened to 239 bytes
};

// The first line in which the ranks differ, the same on every rank; none where all lines are equal. A rank with fewer
// lines has `missing` in place of the others. Collective. Throws CommError where the exchange fails.
std::optional<Disagreement> disagreement(const Communicator& communicator, const std::vector<std::string>& lines,
                                         const std::string& missing = "nothing");

}  // namespace zero
