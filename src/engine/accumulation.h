// The gradients of a step: backwards that bring them, micro-batch by micro-batch, and what the program empties of them.
//
// Thread-safety: the thread that runs forward, backward and step.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backwards/running_backward.h"
#include "engine/micro_batch_numbers.h"
#include "engine/parameters.h"
#include "engine/step_sums.h"
#include "gradients/gradients.h"
#include "operators/float8_linear.h"
#include "zero/loss_scale.h"

namespace zero {

class Accumulation final : public TakesGradients {
 public:
  // Throws ConfigError for a recipe of FP8 that takes no such parameter.
  Accumulation(const Trained& trained, EngineRanks& ranks, const Liveness& life, Parameters& parameters);

  // One backward of the engine; the loss scale is on its gradients, not on the loss.
  std::shared_ptr<RunningBackward> new_backward();
  void backward(const std::shared_ptr<RunningBackward>& run, const at::Tensor& loss);
  at::Tensor scale(const at::Tensor& loss) const;
  // Whether one is under way; and throws StateError for `call` where it is.
  bool in_backward() const { return in_backward_; }
  void require_idle(const char* call) const;
  // Throws StateError for `call` where gradients of a step are held.
  void require_no_gradients(const char* call) const;

  void before_backward() override;
  void after_backward() noexcept override;
  bool joins_others() const override { return trained_.options().outside == OutsideGradients::add; }
  bool launched() const override { return gradients_ && gradients_->launched(); }
  void require_not_ended() const override;
  void end_gradients() override { gradients_->end(); }
  void end_micro_batch(const at::Tensor& loss) override;
  void drop_step() override;
  void drop_arrived() override;
  // The engine ends with the backward that it is part of.
  void end_with_backward() { ended_ = true; }
  // Hears of no backward any more.
  void stop_hearing() { hears_.reset(); }
  // Gives back what shows that there are gradients; the engine ends.
  void release() { gradients_.reset(); }

  // What zero_grad() of the program has emptied since is empty; and ranks agree on it, where some of it is.
  void apply_zero_grad();
  void agree_on_emptied();
  // Both, before what may only be done between steps, or sees whether it is. Collective.
  void settle_emptied();
  bool partly_emptied() const { return partly_emptied_; }

  Gradients& gradients() { return *gradients_; }
  StepSums& sums() { return sums_; }
  LossScaler& scaler() { return scaler_; }
  const c10::intrusive_ptr<Float8Linears>& float8() const { return float8_; }  // null but under Precision::fp8

  // Backwards of the step so far; and the number in the run of the next, which the program is told.
  int micro() const { return numbers_.micro(); }
  std::int64_t next_micro_batch() { return numbers_.tell(in_backward_); }
  std::int64_t consumed() const { return numbers_.consumed(); }
  // What the held gradient is to be divided by.
  double held_times() const;
  // step() is called: gradients that were there then cannot be emptied without those before them.
  void step_called() { stepped_ = micro(); }
  // The step is over.
  void next_step();
  // Goes on from a state.
  void resume(const StateScalars& scalars);

 private:
  void begin_micro_batch();
  void join_backward();
  void begin_anew();
  void empty_step();
  bool any_left();
  MicroBatchNumbers::Emptied emptied() const;

  const Trained& trained_;
  EngineRanks& ranks_;
  const Liveness& life_;
  Parameters& parameters_;
  StepSums sums_;  // of this rank
  c10::intrusive_ptr<Float8Linears> float8_;
  LossScaler scaler_;
  MicroBatchNumbers numbers_;
  std::unique_ptr<Gradients> gradients_;  // null when the engine has been released
  bool partly_emptied_ = false;           // what is left of the step is to be agreed on
  bool in_backward_ = false;
  bool ended_ = false;
  int stepped_ = 0;  // backwards of the step before the latest step() that did nothing
  std::optional<HearsOfBackwards> hears_;
};

}  // namespace zero
