// Samples of memory over time, as many as fit: when they are too many, every other one is dropped, the larger of
// each two kept. No torch.
#pragma once

#include <cstddef>
#include <vector>

#include "zero/memory_report.h"

namespace zero {

class Timeline {
 public:
  explicit Timeline(std::size_t most) : most_(most) {}

  // Samples come in the order of time.
  void add(const MemorySample& sample);
  const std::vector<MemorySample>& samples() const { return samples_; }

 private:
  bool put(const MemorySample& sample);
  void halve();

  std::size_t most_;
  double width_ = 0;      // samples of a stretch as long as this are one
  double slot_end_ = 0;   // of the stretch of the last one
  std::size_t used_ = 0;  // of samples_; all of them but within halve()
  std::vector<MemorySample> samples_;
};

}  // namespace zero
