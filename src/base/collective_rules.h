// What each collective is: how its inputs and outputs are cut, and who takes what of whom. A row is a collective: its
// checks, every transport and the prediction of its bytes go by it. No torch.
#pragma once

#include <cstdint>
#include <string_view>

#include "zero/communicator.h"

namespace zero {

// A slice of a peer's input, and of this rank's output, where it belongs.
struct Take {
  int slice = -1;  // none is taken
  int place = 0;
  explicit operator bool() const { return slice >= 0; }
};

enum class Cut : std::uint8_t { whole, slices };  // into one for each rank

struct CollectiveRule {
  std::string_view name;
  Cut in, out;  // slices and wholes are of one length
  bool sums = false;
  bool rooted = false;
  // Of `peer`, by `rank`; none of sums, which are of all ranks' slices of its number.
  Take (*take)(int rank, int peer, int root) = [](int, int, int) { return Take{}; };
};

const CollectiveRule& rule_of(Collective collective);

// Slices of what a rank of `size` ranks gives, of each sum that it brings where it brings several.
int slices_of_input(const CollectiveCall& call, int size);

}  // namespace zero
