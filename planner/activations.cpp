#include "planner/activations.h"

#include <algorithm>
#include <vector>

#include "planner/block_sizes.h"

namespace planner {
namespace {

class Sum final : public StepListener {
 public:
  void at(std::string_view moment) override {
    moment_ = moment;
    if (moment == "backward") begin(result_.in_backward);
  }
  void hold(const Block& made) override {
    now_ += given(made.bytes);
    for (std::int64_t* const sum : reducing_) *sum = std::max(*sum, now_);
    if (now_ <= result_.bytes) return;
    result_.bytes = now_;
    result_.moment = moment_;
  }
  void scratch(std::int64_t bytes) override {
    hold({.bytes = bytes});
    drop({.bytes = bytes});
  }
  void drop(const Block& block) override { now_ -= given(block.bytes); }
  void completes_layer() override {
    if (result_.layers++ == 0) begin(result_.in_layers);
  }
  void completes_embedding() override { begin(result_.in_embedding); }
  // Each begins with so much more than the one before, or less, so that the largest sums are those of the first, the
  // second or the last. The first alone may begin without gradients that are complete.
  void repeat(std::int64_t times, const std::function<void()>& once) override {
    const std::int64_t left_out = std::max<std::int64_t>(times - 3, 0);
    for (std::int64_t i = 0; i < times - left_out; ++i) {
      const std::int64_t begin = now_, layers = result_.layers;
      once();
      if (i != 1) continue;
      now_ += left_out * (now_ - begin);
      result_.layers += left_out * (result_.layers - layers);
    }
  }
  const Activations& result() const { return result_; }

 private:
  void begin(std::int64_t& largest) {
    largest = now_;
    reducing_.push_back(&largest);
  }

  std::int64_t now_ = kScalars;
  std::string_view moment_;
  std::vector<std::int64_t*> reducing_;  // of result_
  Activations result_;
};

// What goes beyond the budget is dropped, and computed again.
Activations within(const zero::ActivationBudget& budget, Activations all) {
  if (!budget) return all;
  const std::int64_t most = in_bytes(budget, all.bytes);
  for (std::int64_t* const each : {&all.bytes, &all.in_backward, &all.in_layers, &all.in_embedding})
    *each = std::min(*each, most);
  return all;
}

}  // namespace

Activations activations(const MicroBatch& work) {
  Sum sum;
  walk(work, sum);
  return within(work.budget, sum.result());
}

std::int64_t in_bytes(const zero::ActivationBudget& budget, std::int64_t all) {
  return budget.share > 0 ? static_cast<std::int64_t>(budget.share * static_cast<double>(all)) : budget.bytes;
}

}  // namespace planner
