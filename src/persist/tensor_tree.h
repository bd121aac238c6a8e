// A state's tensors as the tree that their names are. No torch.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "zero/state.h"

namespace zero {

struct TensorTree {
  std::string name = {};   // what lies between two points of a name; or more, where nothing branches off
  std::string last = {};   // where it stands for several, "0" to "31", that are alike: the last one's
  std::int64_t alike = 1;  // so many
  std::int64_t bytes = 0;  // of one of them, with all below it
  std::vector<const StateTensor*> tensors = {};  // of just that name
  std::vector<TensorTree> children = {};         // in the order of their first tensors
};

enum class Layers { all, alike_as_one };  // neighbours by number, of the same tensors

// The root, which has no name; points to `tensors`.
TensorTree tensor_tree(const std::vector<StateTensor>& tensors, Layers layers);

std::int64_t bytes_of(const StateTensor& tensor);

}  // namespace zero
