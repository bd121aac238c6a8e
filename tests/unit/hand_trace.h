// Traces of micro-batches written by hand, and what holds of plans for them.
#pragma once

#include <cstdint>
#include <set>
#include <vector>

#include "partition/activation_plan.h"

namespace zero::activation_plan_test {

inline constexpr StoredWay kDisk{.nanoseconds_a_byte = 10};

// Operators of a micro-batch one by one. Storages are numbers; each is read by name of its number.
class Trace {
 public:
  // An operator that makes one storage of so many bytes of others.
  int makes(std::int64_t bytes, const std::vector<int>& of, std::int64_t nanoseconds = 1000, bool again = true) {
    const int number = static_cast<int>(trace_.storages.size());
    TracedOperator& op = add(of, nanoseconds, again);
    trace_.storages.push_back({.bytes = bytes, .writers = {last()}});
    op.results = {number};
    op.result_bytes = bytes;
    return number;
  }
  // One that reads some and keeps nothing.
  void reads(const std::vector<int>& of, bool backward = true) { add(of, 1000, /*again=*/false).backward = backward; }
  void writes(int storage, const std::vector<int>& of = {}) {
    TracedOperator& op = add(of, 1000, /*again=*/true);
    op.uses.push_back({storage, version(storage), /*written=*/true});
    its(storage).writers.push_back(last());
    its(storage).readers.push_back(last());
  }
  // Another result of the last operator.
  int also(std::int64_t bytes) {
    const int number = static_cast<int>(trace_.storages.size());
    trace_.storages.push_back({.bytes = bytes, .writers = {last()}});
    last_operator().results.push_back(number);
    last_operator().result_bytes += bytes;
    return number;
  }
  void may_be_stored(int storage, std::int64_t bytes = 0) { its(storage).stored_bytes = bytes; }
  // Rounds it before what follows, which reads it in backward.
  void rounds(int storage) {
    writes(storage);
    last_operator().again = false;
    last_operator().rounds = last_operator().backward = true;
  }
  void ends(int storage) { its(storage).death = static_cast<int>(trace_.operators.size()); }
  TracedOperator& last_operator() { return trace_.operators.back(); }
  const OperatorTrace& get() const { return trace_; }

 private:
  int last() const { return static_cast<int>(trace_.operators.size()) - 1; }
  TracedStorage& its(int storage) { return trace_.storages[static_cast<std::size_t>(storage)]; }
  int version(int storage) { return static_cast<int>(its(storage).writers.size()); }
  TracedOperator& add(const std::vector<int>& of, std::int64_t nanoseconds, bool again) {
    TracedOperator& op = trace_.operators.emplace_back();
    op.nanoseconds = nanoseconds;
    op.again = again;
    for (const int storage : of) {
      op.uses.push_back({storage, version(storage), /*written=*/false});
      its(storage).readers.push_back(last());
    }
    return op;
  }

  OperatorTrace trace_;
};

// Whether each storage that begins to be stored has its memory until it is.
inline bool stores_whole(const ActivationPlan& plan) {
  std::set<int> begun;
  for (std::size_t i = 0; i < plan.drops.size(); ++i) {
    for (const auto& each : plan.drops[i])
      if (begun.erase(each.storage) > 0 && !each.stores) return false;
    if (i < plan.moves.size())
      for (const auto& each : plan.moves[i])
        if (!each.fetches) begun.insert(each.storage);
  }
  return true;
}

}  // namespace zero::activation_plan_test
