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

// The scale over the steps of a training, the same on every rank that hears the same. A value: one thread at a time.
class LossScaler {
 public:
  explicit LossScaler(const LossScale& policy);  // throws ConfigError
  bool dynamic() const { return policy_.dynamic; }
  double value() const { return value_; }              // of the next step
  std::int64_t clean_steps() const { return clean_; }  // since the last overflow or growth
  int overflows_left() const { return left_; }         // until it is lowered
  // Goes on where another one of a dynamic scale was. Throws ConfigError for a value that is no power of two.
  void resume(double value, std::int64_t clean_steps, int overflows_left);
  // After a step. Throws StateError when it overflowed at the floor.
  void update(bool overflow);

 private:
  void shrink();

  LossScale policy_;
  double value_;
  std::int64_t clean_ = 0;
  int left_;
};

}  // namespace zero
