// Adds the time that a scope takes to a total.
#pragma once

#include <chrono>

namespace zero {

class TimedScope {
 public:
  // `seconds` must live as long.
  explicit TimedScope(double& seconds) : seconds_(seconds) {}
  ~TimedScope() { seconds_ += std::chrono::duration<double>(Clock::now() - begin_).count(); }
  TimedScope(const TimedScope&) = delete;
  TimedScope& operator=(const TimedScope&) = delete;

 private:
  using Clock = std::chrono::steady_clock;
  double& seconds_;
  Clock::time_point begin_ = Clock::now();
};

}  // namespace zero
