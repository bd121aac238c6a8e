// What trainings of every setting have in common.
#pragma once

#include <torch/torch.h>

#include "late_stores.h"
#include "settings.h"

namespace zero::test {

inline constexpr int kSteps = 4;

// In fp16 the second step overflows, whatever the scale is, and is skipped. After it parameters are those that are
// there.
inline StepReport step_of(Lm& model, Engine& engine, int number) {
  const bool overflows = engine.plan().precision() == Precision::fp16 && number == 1;
  for (int i = 0; i < engine.plan().accumulate(); ++i) {
    const at::Tensor loss = model.loss(engine.micro_batch());
    engine.backward(overflows ? loss * 0x1p20 : loss);
  }
  const StepReport report = engine.step();
  EXPECT_EQ(report.applied, !overflows) << "step " << number;
  return report;
}

// States that are not in a model's memory lie where nobody has a pointer to them, and come as late as they may; devices
// do what is asked of them by chance.
class Delays {
 public:
  explicit Delays(const LateStates& states, bool any = true)
      : states_(on_devices() ? LateStates{} : states), any_(any && !states_.empty()) {}
  ~Delays() {
    expect_no_fault(watch_);
    EXPECT_EQ(watch_->operations > 0, any_);
  }
  Delays(const Delays&) = delete;
  Delays& operator=(const Delays&) = delete;

  Course<Lm> on(const Course<Lm>& course) const { return in_late_stores(watch_, course, states_); }
  // The bytes of views of one store that were under way.
  std::int64_t most() const { return watch_->most; }

 private:
  Watch watch_ = std::make_shared<LateWatch>();
  LateStates states_;
  bool any_;  // of their bytes there are some
};

}  // namespace zero::test
