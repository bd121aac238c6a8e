// In which order the checkpoints of a folder were written, and which of them a run has left by going back to an older
// one: a file in each of them, so that it goes where the checkpoint goes. No torch.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "persist/env.h"

namespace zero {

inline constexpr std::string_view kLineageFile = "lineage.json";

struct Lineage {
  std::int64_t number = 0;  // in the folder, by time of writing, from 1 on; 0: not known, older than all that are
  // Numbers [first, last] of checkpoints that were there and that this one does not go on from.
  std::vector<std::pair<std::int64_t, std::int64_t>> left = {};
  bool has_left(std::int64_t other) const;
  bool operator==(const Lineage&) const = default;
};

// Which checkpoint a run goes on from.
struct Origin {
  std::int64_t step = 0;
  Lineage lineage = {};
};

std::string to_text(const Lineage& lineage);
// Throws CheckpointError, naming `source`, for all that to_text() does not write.
Lineage lineage_of(const std::string& text, const std::string& source);

// Of a checkpoint's folder; number 0 where it says nothing, or nothing that is whole. Throws CheckpointError where it
// cannot be read.
Lineage read_lineage(Env& env, const std::string& folder);

}  // namespace zero
