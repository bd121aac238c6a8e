// Adds the time that a scope takes to a total.
#pragma once

#include <chrono>

namespace zero {

class Lap {
 public:
  // `seconds` must live as long.
  explicit Lap(double& seconds) : seconds_(seconds) {}
  ~Lap() { seconds_ += std::chrono::duration<double>(Clock::now() - begin_).count(); }
  Lap(const Lap&) = delete;
  Lap& operator=(const Lap&) = delete;

 private:
  using Clock = std::chrono::steady_clock;
  double& seconds_;
  Clock::time_point begin_ = Clock::now();
};

}  // namespace zero
