#include "zero/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string>

#include "zero/error.h"

namespace zero {

namespace {

void check(std::int64_t warmup, std::int64_t steps, std::int64_t decay, double floor) {
  std::string text;
  const auto expect = [&](bool good, const std::string& sentence) {
    if (!good) text += (text.empty() ? "" : "; ") + sentence;
  };
  expect(warmup >= 0, "warmup is " + std::to_string(warmup) + " steps");
  expect(steps >= 0, "steps is " + std::to_string(steps));
  expect(decay >= 0, "decay is " + std::to_string(decay) + " steps");
  expect(floor >= 0 && floor <= 1, "floor is " + std::to_string(floor) + ", not in [0, 1]");
  if (!text.empty()) throw ConfigError("no schedule: " + text);
}

double ratio(std::int64_t a, std::int64_t b) {
  return static_cast<double>(a) / static_cast<double>(b);
}

// `after(step)` behind the warm-up.
template <class After>
Schedule warmed_up(std::int64_t warmup, After after) {
  return [warmup, after](std::int64_t step) { return step < warmup ? ratio(step + 1, warmup) : after(step); };
}

// How much of a fall from step `first`, which is 0, to step `last`, which is 1, is done.
double done(std::int64_t step, std::int64_t first, std::int64_t last) {
  if (last <= first) return 1;
  return std::clamp(ratio(step - first, last - first), 0.0, 1.0);
}

}  // namespace

Schedule constant_schedule(std::int64_t warmup) {
  check(warmup, 0, 0, 0);
  return warmed_up(warmup, [](std::int64_t) { return 1.0; });
}

Schedule cosine_schedule(Span span, double floor) {
  check(span.warmup, span.steps, 0, floor);
  if (span.steps <= span.warmup + 1) return constant_schedule(span.warmup);
  return warmed_up(span.warmup, [=](std::int64_t step) {
    const double fallen = done(step, span.warmup, span.steps - 1);
    return floor + (1 - floor) * 0.5 * (1 + std::cos(std::numbers::pi * fallen));
  });
}

Schedule linear_schedule(Span span, double floor) {
  return stable_decay_schedule(span, std::max<std::int64_t>(span.steps - span.warmup - 1, 0), floor);
}

Schedule inverse_root_schedule(std::int64_t warmup) {
  check(warmup, 0, 0, 0);
  const std::int64_t reference = std::max<std::int64_t>(warmup, 1);
  return warmed_up(warmup, [reference](std::int64_t step) { return std::sqrt(ratio(reference, step + 1)); });
}

Schedule stable_decay_schedule(Span span, std::int64_t decay, double floor) {
  check(span.warmup, span.steps, decay, floor);
  if (decay == 0 || span.steps <= span.warmup + 1) return constant_schedule(span.warmup);
  const std::int64_t last = span.steps - 1;
  return warmed_up(span.warmup, [=](std::int64_t step) {
    return 1 - (1 - floor) * done(step, std::max(last - decay, span.warmup), last);
  });
}

}  // namespace zero
