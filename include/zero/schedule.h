// Learning-rate schedules: factors on the optimizer's learning rate, for Options::schedule. Steps count from
// 0; every schedule first rises linearly over `warmup` steps, the last of which has the factor 1, except
// that inverse_root falls as soon as the warm-up ends. Past the end the last factor stays. Thread-safe values.
// Each throws ConfigError for a negative number of steps or a floor outside [0, 1].
#pragma once

#include <cstdint>
#include <functional>

namespace zero {

using Schedule = std::function<double(std::int64_t step)>;

struct Span {
  std::int64_t warmup = 0;
  std::int64_t steps = 1;  // of the whole training, warm-up included
};

Schedule constant_schedule(std::int64_t warmup = 0);
// Down to `floor` at the last step: half a cosine (Loshchilov and Hutter, 2017), or a straight line.
Schedule cosine_schedule(Span span, double floor = 0.1);
Schedule linear_schedule(Span span, double floor = 0);
// sqrt(max(warmup, 1) / step), the step counted from 1 (Vaswani et al., 2017, section 5.3).
Schedule inverse_root_schedule(std::int64_t warmup);
// 1 until the last `decay` steps, then a straight line to `floor` (Hu et al., 2024: warm-up-stable-decay).
Schedule stable_decay_schedule(Span span, std::int64_t decay, double floor = 0);

}  // namespace zero
