#include "planner/activations.h"

#include <algorithm>

namespace planner {
namespace {

// LibTorch's small blocks come from malloc, which gives a little more than it is asked for.
constexpr std::int64_t kSmall = 128 << 10;
constexpr std::int64_t kSlack = 48;
constexpr std::int64_t kScalars = 512;

std::int64_t given(std::int64_t bytes) {
  return bytes < kSmall ? bytes + kSlack : bytes;
}

class Sum final : public StepListener {
 public:
  void at(std::string_view moment) override {
    moment_ = moment;
    late_ = moment == "backward";
  }
  void hold(std::int64_t bytes) override {
    now_ += given(bytes);
    if (late_) result_.in_backward = std::max(result_.in_backward, now_);
    if (now_ <= result_.bytes) return;
    result_.bytes = now_;
    result_.moment = moment_;
  }
  void drop(std::int64_t bytes) override { now_ -= given(bytes); }
  const Activations& result() const { return result_; }

 private:
  std::int64_t now_ = kScalars;
  std::string_view moment_;
  bool late_ = false;
  Activations result_;
};

}  // namespace

Activations activations(const MicroBatch& work) {
  Sum sum;
  walk(work, sum);
  return sum.result();
}

}  // namespace planner
