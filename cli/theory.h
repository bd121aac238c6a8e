// What the ZeRO paper says that a plan holds and exchanges, without padding and the step's small messages. No torch.
#pragma once

#include <cstdint>
#include <string>

#include "zero/plan.h"

namespace cli {

struct Theory {
  std::string state;  // bytes of a rank, as a formula: "4 Ψ + 12 Ψ / N"
  std::int64_t state_bytes = 0;
  std::string volume;  // elements that a rank exchanges in a step, but for the factor (N - 1) / N: "2 Ψ"
  std::int64_t volume_bytes = 0;
};

// `held`: bytes that the optimizer keeps of a parameter, its moments and what Plan::remainder_bytes says.
Theory theory_of(const zero::Plan& plan, std::int64_t parameters, int ranks, double held);

}  // namespace cli
