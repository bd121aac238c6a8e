// What the state of an optimizer means. No torch.
#pragma once

#include <string>
#include <string_view>

#include "zero/optimizer.h"

namespace zero {

// What the optimizer's moment of that number is, in PyTorch's word: two that have one name in optimizers of the same
// state have one formula.
std::string_view moment_name(const Optimizer& optimizer, int moment);

// Whether what an optimizer of the one name() keeps means the same to one of the other.
bool same_state(std::string_view one, std::string_view other);

}  // namespace zero
