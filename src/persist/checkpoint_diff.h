// In what two checkpoints differ, whatever plans and ranks they were written by. No torch.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "persist/checkpoint_reader.h"
#include "persist/env.h"

namespace zero {

// A tensor that only one of them has, or that has another dtype or shape, or that is of other blocks.
struct FormDifference {
  std::string tensor;  // "layer.weight moment exp_avg"
  std::string a, b;    // "fp32 [3, 4]"; empty: it is not there
  bool operator==(const FormDifference&) const = default;
};

struct ValueDifference {
  std::string tensor;
  std::int64_t elements = 0;  // of the tensor
  std::int64_t differ = 0;    // so many of them
  std::int64_t nan = 0;       // of those: NaN in one of the two only
  // The largest absolute difference of the others, and where it is first; nowhere if there are no others. It is
  // infinite where one is. Zeros of other signs differ, by 0.
  double largest = 0;
  std::vector<std::int64_t> at = {};  // an index for each dimension
  bool operator==(const ValueDifference&) const = default;
};

// Of what is no tensor, as text: steps, seed, ..., and the program's JSON.
struct ScalarDifference {
  std::string name;
  std::string a, b;  // empty: it is not there
  bool operator==(const ScalarDifference&) const = default;
};

struct CheckpointDifferences {
  std::int64_t tensors = 0;   // that both have in the same form, and that were compared
  std::int64_t elements = 0;  // of these
  std::vector<FormDifference> forms = {};
  std::vector<ValueDifference> values = {};
  std::vector<ScalarDifference> scalars = {};
  bool none() const { return forms.empty() && values.empty() && scalars.empty(); }
};

// Elements are equal where their bits are, and NaN is equal to NaN. What they were written by, plan, ranks and
// versions, is not compared. Memory is constant but for what a CheckpointSource takes. Throws CheckpointError for what
// is damaged.
CheckpointDifferences differences(Env& env, const Checkpoint& a, const Checkpoint& b,
                                  const ReadProgress& progress = {});

}  // namespace zero
