// The activations of an engine's micro-batches: what they take is booked, and where the plan sets a budget, they are
// paged within it (backwards/activation_window.h). The first micro-batches drop what is cheapest as they come; what was
// recorded of one that came twice gives a plan (partition/activation_plan.h), which those like it then go by.
//
// Thread-safety: runs on the thread that runs forward and backward.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/DispatchKeySet.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backwards/activation_recorder.h"
#include "backwards/activation_window.h"
#include "backwards/sees_thread.h"
#include "backwards/unwatched.h"
#include "zero/activation_report.h"
#include "zero/plan.h"

namespace zero {

class Activations {
 public:
  explicit Activations(Accounts& accounts) : memory_(accounts) {}
  ~Activations();
  Activations(const Activations&) = delete;
  Activations& operator=(const Activations&) = delete;

  // From the next micro-batch on. Throws ConfigError on a device.
  void limit(const ActivationBudget& budget, std::unique_ptr<ParametersAgain> parameters);

  // A forward begins, with gradients or an evaluation; it is over; the same of a backward, with which the micro-batch
  // is, or is not, complete.
  void begin_forward(bool trains);
  void end_forward();
  void begin_backward();
  void end_backward(bool complete);
  // What they are made of changes, or ends: all that lives is there from here on.
  void settle();

  ActivationReport report() const { return report_; }

  // Carries out an operator that the fallback below autograd sees, with its keys from there.
  static void run(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);

 private:
  struct Here;
  void open();
  void pause();
  void learn();
  void learn(OperatorTrace trace);
  void set_budget(const OperatorTrace& trace);
  void plan(OperatorTrace trace);
  std::string refusal(const OperatorTrace& trace) const;

  ActivationRecorder memory_;
  ActivationBudget budget_;
  std::int64_t bytes_ = 0;  // of the budget; 0: not known yet
  std::unique_ptr<ParametersAgain> parameters_;
  std::shared_ptr<Here> here_;
  std::optional<SeesThread<kBelowKey>> seeing_;
  std::shared_ptr<ActivationWindow> window_;              // of the micro-batch
  bool complete_ = true;                                  // its backward is over
  std::vector<std::shared_ptr<ActivationWindow>> past_;   // something of which may be missing
  std::deque<std::shared_ptr<PlannedMicroBatch>> plans_;  // used last first
  std::deque<OperatorTrace> seen_once_;
  bool record_anew_ = false;  // the next one, without a plan
  std::string fault_;         // of the budget
  ActivationReport report_;
};

}  // namespace zero
