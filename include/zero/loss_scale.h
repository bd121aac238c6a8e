// Loss scaling (Micikevicius et al., 2018): the loss is multiplied before backward so that gradients in fp16 do
// not vanish, and the gradients divided before the update. Powers of two, so that nothing is rounded.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace zero {

struct LossScale {
  double initial = 65536;
  bool dynamic = true;  // false: stays at `initial`; overflows still skip steps
  double growth = 2;    // after `window` steps in a row without overflow
  std::int64_t window = 2000;
  double backoff = 0.5;  // after an overflow, once the hysteresis is used up
  int hysteresis = 1;    // overflows up to and including the one that lowers the scale; counted anew at growth
  double floor = 1;      // an overflow at this scale is an error

  static LossScale fixed(double scale) { return {.initial = scale, .dynamic = false}; }
};

// Everything that is wrong with it, one sentence each.
std::vector<std::string> faults(const LossScale& scale);

// The scale over the steps of a training, the same on every rank that hears the same.
class LossScaler {
 public:
  explicit LossScaler(const LossScale& policy);  // throws ConfigError
  double value() const { return value_; }
  // After a step. Throws StateError when it overflowed at the floor.
  void update(bool overflow);

 private:
  void shrink();

  LossScale policy_;
  double value_;
  std::int64_t clean_ = 0;  // steps since the last overflow or growth
  int left_;                // of the hysteresis
};

}  // namespace zero
