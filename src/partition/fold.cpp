#include "partition/fold.h"

#include <bit>

namespace zero {

Fold fold_of(bool tree, int levels, int micro, int micro_batches) {
  const int top = levels - 1;
  if (!tree) return {micro == 0 ? std::vector<int>{} : std::vector<int>{top}, top};
  const auto waiting = static_cast<unsigned>(micro);
  const bool last = micro == micro_batches - 1;
  const int carries = last ? static_cast<int>(std::bit_width(waiting)) : std::countr_one(waiting);
  Fold fold{{}, last ? top : carries};
  for (int level = 0; level < carries; ++level)
    if ((waiting >> level) & 1u) fold.sources.push_back(level);
  return fold;
}

}  // namespace zero
