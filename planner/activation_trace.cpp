#include "planner/activation_trace.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "planner/block_sizes.h"
#include "planner/seconds.h"

namespace planner {
namespace {

class Recorder final : public StepListener {
 public:
  Recorder(const MicroBatch& work, const Pace& pace)
      : precision_(work.precision), gathers_(work.gathers), stores_(work.way), pace_(pace) {}

  void at(std::string_view moment) override { backward_ = backward_ || moment == "start of backward"; }
  void runs(const StepOperator& its) override {
    finish();
    zero::TracedOperator& op = trace_.operators.operators.emplace_back();
    trace_.names.emplace_back(its.name);
    for (const Block& block : its.reads) {
      op.uses.push_back({block.number, 1, false});
      storage(block.number).readers.push_back(now());
    }
    if (gathers_ && its.unit != StepOperator::kNoUnit) op.units.push_back(its.unit);
    op.other_bytes = kScalars;
    op.backward = backward_;
    op.again = its.of_forward;
  }
  void hold(const Block& made) override {
    zero::TracedOperator& op = trace_.operators.operators.back();
    op.results.push_back(made.number);
    op.result_bytes += given(made.bytes);
    trace_.operators.storages.push_back(
        {.bytes = given(made.bytes), .writers = {now()}, .kept = made.bytes < zero::kLeastPaged});
    if (stores_ && !backward_ && made.bytes >= zero::kLeastStored) trace_.operators.storages.back().stored_bytes = 0;
  }
  void scratch(std::int64_t bytes) override {
    zero::TracedOperator& op = trace_.operators.operators.back();
    op.scratch_bytes = std::max(op.scratch_bytes, given(bytes));
  }
  void drop(const Block& block) override { storage(block.number).death = now() + 1; }
  void product(std::int64_t m, std::int64_t n, std::int64_t k) override { labour_.add_product(precision_, m, n, k); }
  void attention(double flops, bool) override { labour_.add_attention(flops); }
  void sweep(std::int64_t, std::int64_t bytes) override { labour_.add_sweep(bytes); }

  ActivationTrace take() {
    finish();
    return std::move(trace_);
  }

 private:
  int now() const { return static_cast<int>(trace_.operators.operators.size()) - 1; }
  zero::TracedStorage& storage(int number) { return trace_.operators.storages[static_cast<std::size_t>(number)]; }
  // What the operator before this one works is known.
  void finish() {
    if (now() < 0) return;
    trace_.operators.operators.back().nanoseconds = std::llround(1e9 * std::exchange(labour_, {}).seconds(pace_));
  }

  zero::Precision precision_;
  bool gathers_, stores_;
  const Pace& pace_;
  bool backward_ = false;
  Labour labour_;
  ActivationTrace trace_;
};

}  // namespace

ActivationTrace activation_trace(const MicroBatch& work, const Pace& pace) {
  Recorder recorder(work, pace);
  walk(work, recorder);
  return recorder.take();
}

}  // namespace planner
