// The activations of an engine's micro-batches: what they take is booked, and where the plan sets a budget, they are
// paged within it (backwards/activation_window.h). The first micro-batches drop what is cheapest as they come; what was
// recorded of one that came twice gives a plan (partition/activation_plan.h), which those like it then go by.
//
// Thread-safety: runs on the thread that runs forward and backward; operators of its backwards on any.
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

// What a thread's operators go through.
struct ActivationsHere {
  ActivationWindow* window = nullptr;     // which records
  ParametersAgain* parameters = nullptr;  // of an engine; any may page in for all

  // Of this thread, or of the one whose backward it carries out, as devices' threads do; null: none so far.
  static const ActivationsHere* current();
};

class Activations {
 public:
  explicit Activations(Accounts& accounts) : accounts_(accounts), memory_(accounts) {}
  ~Activations();
  Activations(const Activations&) = delete;
  Activations& operator=(const Activations&) = delete;

  // Hears of what comes back.
  void observe(std::weak_ptr<EngineObserver> observer) { observer_ = std::move(observer); }
  // By the plan's budget, and its row of activations, from the next micro-batch on. Throws ConfigError where they do
  // not go with the device.
  void limit(const Plan& plan, std::unique_ptr<ParametersAgain> parameters);

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
  // Of micro-batches before.
  struct Known {
    std::deque<std::shared_ptr<PlannedMicroBatch>> plans = {};  // used last first
    struct Seen {
      std::uint64_t signature;
      std::vector<std::int64_t> nanoseconds;  // of each operator
    };
    std::deque<Seen> seen_once = {};
    bool record_anew = false;  // the next one, without a plan
  };
  void open();
  void pause();
  void learn();
  void learn(const OperatorTrace& trace);
  void set_budget(const OperatorTrace& trace);
  void plan(OperatorTrace trace);
  std::string refusal(const OperatorTrace& trace) const;

  Accounts& accounts_;
  std::weak_ptr<EngineObserver> observer_;
  ActivationRecorder memory_;
  std::unique_ptr<ActivationStore> store_;  // null: all is computed again
  ActivationBudget budget_;
  std::int64_t bytes_ = 0;  // of the budget; 0: not known yet
  std::unique_ptr<ParametersAgain> parameters_;
  std::shared_ptr<ActivationsHere> here_;
  std::optional<SeesThread<kBelowKey>> seeing_;
  std::shared_ptr<ActivationWindow> window_;             // of the micro-batch
  bool complete_ = true;                                 // its backward is over
  std::vector<std::shared_ptr<ActivationWindow>> past_;  // something of which may be missing
  Known known_;
  std::string fault_;  // of the budget
  ActivationReport report_;
};

}  // namespace zero
