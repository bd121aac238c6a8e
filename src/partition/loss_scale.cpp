#include "zero/loss_scale.h"

#include <algorithm>
#include <cmath>

#include "base/text.h"
#include "zero/error.h"

namespace zero {

namespace {

// That fp32 holds.
bool power_of_two(double value) {
  int exponent = 0;
  return value > 0 && std::isnormal(static_cast<float>(value)) && std::frexp(value, &exponent) == 0.5;
}

LossScale checked(const LossScale& policy) {
  const std::string text = joined(faults(policy), "; ");
  if (!text.empty()) throw ConfigError("no loss scale: " + text);
  return policy;
}

}  // namespace

std::vector<std::string> faults(const LossScale& scale) {
  std::vector<std::string> found;
  const auto expect = [&](bool good, const std::string& sentence) {
    if (!good) found.push_back(sentence);
  };
  expect(power_of_two(scale.initial), "initial must be a power of two, not " + std::to_string(scale.initial));
  if (!scale.dynamic) return found;
  expect(power_of_two(scale.growth) && scale.growth >= 1,
         "growth must be a power of two from 1 on, not " + std::to_string(scale.growth));
  expect(power_of_two(scale.backoff) && scale.backoff < 1,
         "backoff must be a power of two below 1, not " + std::to_string(scale.backoff));
  expect(power_of_two(scale.floor), "floor must be a power of two, not " + std::to_string(scale.floor));
  expect(!(scale.floor > scale.initial), "floor is above initial");
  expect(scale.window >= 1, "window must be at least 1 step, not " + std::to_string(scale.window));
  expect(scale.hysteresis >= 1, "hysteresis must be at least 1 overflow, not " + std::to_string(scale.hysteresis));
  return found;
}

LossScaler::LossScaler(const LossScale& policy)
    : policy_(checked(policy)), value_(policy.initial), left_(policy.hysteresis) {}

void LossScaler::resume(double value, std::int64_t clean_steps, int overflows_left) {
  if (!power_of_two(value))
    throw ConfigError("a loss scale must be a power of two, not " + std::to_string(value) +
                      ": the state to go on from is not one of an engine");
  value_ = value;
  clean_ = clean_steps;
  left_ = overflows_left;
}

void LossScaler::update(bool overflow) {
  if (!policy_.dynamic) return;
  if (overflow) return shrink();
  if (++clean_ < policy_.window) return;
  clean_ = 0;
  left_ = policy_.hysteresis;
  if (const double grown = value_ * policy_.growth; std::isfinite(static_cast<float>(grown))) value_ = grown;
}

void LossScaler::shrink() {
  clean_ = 0;
  if (left_ > 1) {
    --left_;
    return;
  }
  if (value_ <= policy_.floor)
    throw StateError("the gradients overflow even at the lowest loss scale, " + std::to_string(policy_.floor),
                     "lower the learning rate, clip, or compute in bf16");
  value_ = std::max(value_ * policy_.backoff, policy_.floor);
}

}  // namespace zero
