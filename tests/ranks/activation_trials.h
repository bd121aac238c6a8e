// Activations of small models within a budget: tensors of any size are traced.
#pragma once

#include <atomic>
#include <cstdint>

#include "backwards/activation_memory.h"

namespace zero::test {

// As long as it lives. `seed`: what goes first is chance. Unless it `refuses`, a budget that cannot be met is kept to
// as far as that goes.
class Trials {
 public:
  explicit Trials(std::uint32_t seed = 0, bool refuses = false) {
    set_activation_trials(
        {.traced_from = 1, .moved_from = 1, .seed = seed, .refuses = refuses, .recomputed = &recomputed_});
  }
  ~Trials() { set_activation_trials({}); }
  Trials(const Trials&) = delete;
  Trials& operator=(const Trials&) = delete;
  // Operators that have run again.
  std::int64_t recomputed() const { return recomputed_; }

 private:
  std::atomic<std::int64_t> recomputed_ = 0;
};

}  // namespace zero::test
