// The end of a step: the ranks vote, update what each owns, at once or beside the next step, and tell each other. What
// the program sets of its optimizer is read here.
//
// Thread-safety: the thread that runs forward, backward and step.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/accumulation.h"
#include "engine/engine_optimizer.h"
#include "engine/parameters.h"
#include "engine/read_gradients.h"
#include "engine/vote.h"
#include "zero/error.h"

namespace zero {

class Step {
 public:
  Step(Trained& trained, EngineRanks& ranks, Liveness& life, Parameters& parameters, Accumulation& accumulation);

  // `save_ended`: that a save in the background has, on this rank; then that it has on all. Collective.
  StepReport take(bool& save_ended);
  const StepReport& last() const { return last_; }
  std::int64_t steps() const { return steps_; }
  std::int64_t skipped() const { return skipped_; }
  void resume(std::int64_t steps, std::int64_t skipped);
  // Bits that all ranks' next report has.
  void request(std::uint32_t bits) { requests_ |= bits; }

  // An optimizer of LibTorch's that stands for the engine; `step` is its step().
  EngineOptimizer& optimizer(const std::function<void()>& step);
  // What is said where it was asked for as another one than it is.
  ConfigError other_optimizer(const std::string& wanted) const;

  // Those that the step would take.
  GradientReader gradients() { return {trained_, ranks_, parameters_, accumulation_}; }

  // Parameters are those of the latest step from here on, for `call`. Throws StateError within a step, which computes
  // with those before a delayed update. Collective where updates are.
  void finish_delayed_update(const char* call);

 private:
  StepReport attempt(bool& save_ended);
  StepDecision vote(bool save_ended);
  std::uint32_t rates() const;
  void require_same_rates(const StepDecision& decision) const;
  double factor_on_rates() const;
  double scale_of(const StepDecision& decision) const;
  UnitStep next_step(Unit& unit, const StepDecision& decision, double lr_factor);
  std::vector<Unit*> in_order_of_updates() const;
  double update(const StepDecision& decision, double lr_factor);
  double begin_delayed(const StepDecision& decision, double lr_factor);
  void write_delayed();
  void apply_delayed_in_step();
  void meet_before_writing();
  void before_evaluation();
  std::optional<double> ratio_of(const ParameterRule& rule) const;
  void read_learning_rates();
  void read_other_values();

  Trained& trained_;
  EngineRanks& ranks_;
  Liveness& life_;
  Parameters& parameters_;
  Accumulation& accumulation_;
  double lr_;                                   // of parameters in no group
  std::unique_ptr<EngineOptimizer> optimizer_;  // null before it is asked for
  StepReport last_ = {};
  std::int64_t steps_ = 0;
  std::int64_t skipped_ = 0;
  std::uint32_t requests_ = 0;  // since the last vote
};

}  // namespace zero
