// A bar for bytes that are read, which shows itself where that takes longer than a second.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "cli/report/progress.h"

namespace cli {

class ByteProgress {
 public:
  using Clock = std::function<double()>;  // seconds
  static double steady_seconds();

  // Of `bytes` that will be read, or fewer.
  ByteProgress(const std::string& label, std::int64_t bytes, const Screen& on = screen(), Clock clock = steady_seconds);

  // What is read next.
  void begin(const std::string& what) { what_ = what; }
  // So many more bytes are done.
  void add(std::int64_t bytes);
  // Takes the line away, for other output.
  void clear() { progress_.clear(); }

 private:
  std::int64_t done_ = 0;
  std::string what_;
  Clock clock_;
  double next_;  // when it is shown again
  Progress progress_;
};

}  // namespace cli
