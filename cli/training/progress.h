// A line on standard error that says how far a run has come, where that is a terminal; nothing elsewhere.
#pragma once

#include <cstdint>
#include <string>

namespace cli {

class Progress {
 public:
  Progress(std::string label, std::int64_t steps);
  ~Progress() { clear(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void show(std::int64_t step, double loss, double tokens_per_second, std::int64_t bytes);
  // Takes the line away, for other output.
  void clear();

 private:
  std::string label_;
  std::int64_t steps_;
  bool on_;
  bool colour_;
  bool shown_ = false;
};

}  // namespace cli
