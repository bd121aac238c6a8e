// What the steps of a run that are alike have moved, of all that its engine moves.
#pragma once

#include <cstdint>
#include <utility>

#include "zero/engine.h"

namespace cli {

class CountedSteps {
 public:
  explicit CountedSteps(const zero::Engine& engine) : engine_(engine) {}

  void made() { ++since_; }
  // The steps made since the last of these calls count, or do not. To ask for the traffic waits for what is on its way,
  // so that steps are only asked one by one where any of them may be skipped.
  void count() {
    const zero::Traffic now = engine_.traffic();
    using Entry = zero::Traffic::Entry;
    for (std::size_t i = 0; i < now.entries.size(); ++i)
      for (const auto part :
           {&Entry::bytes, &Entry::across_hosts, &Entry::in_place, &Entry::codes, &Entry::codes_across})
        traffic_.entries[i].*part += now.entries[i].*part - asked_.entries[i].*part;
    asked_ = now;
    const std::int64_t tensor = engine_.tensor_traffic().bytes();
    tensor_ += tensor - std::exchange(tensor_asked_, tensor);
    const zero::TierTraffic moved = engine_.tier_traffic();
    moved_ += moved;
    moved_ -= moved_asked_;
    moved_asked_ = moved;
    counted_ += std::exchange(since_, 0);
  }
  void leave_out() {
    asked_ = engine_.traffic();
    tensor_asked_ = engine_.tensor_traffic().bytes();
    moved_asked_ = engine_.tier_traffic();
    since_ = 0;
  }

  std::int64_t counted() const { return counted_; }
  // Of all that count.
  const zero::Traffic& traffic() const { return traffic_; }
  const zero::TierTraffic& moved() const { return moved_; }
  std::int64_t tensor() const { return tensor_; }  // bytes along the tensor axis

 private:
  const zero::Engine& engine_;
  zero::Traffic asked_, traffic_;  // all of it, when it was asked for last
  zero::TierTraffic moved_asked_, moved_;
  std::int64_t tensor_asked_ = 0, tensor_ = 0;
  std::int64_t counted_ = 0, since_ = 0;
};

}  // namespace cli
