#include "backwards/paged_activations.h"

#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <chrono>
#include <span>
#include <utility>

#include "backwards/arguments.h"
#include "backwards/operator_kind.h"
#include "backwards/running_backward.h"
#include "backwards/unwatched.h"
#include "base/lifetimes.h"
#include "base/random.h"
#include "zero/activations.h"
#include "zero/error.h"

namespace zero {
namespace {

// Micro-batches of other shapes, of which a plan or a record is kept.
constexpr std::size_t kMostShapes = 8;
// Of a budget, for blocks of malloc, which are now so large, now so. Bytes; at most 1/256 of it.
constexpr std::int64_t kMostSlack = 16 * 1024;
constexpr std::int64_t kUnlimited = INT64_MAX / 4;

std::uint64_t signature(const OperatorTrace& trace) {
  std::uint64_t all = trace.operators.size();
  for (const TracedOperator& each : trace.operators) all = derived(all, each.identity);
  return all;
}

std::vector<std::int64_t> times_of(const OperatorTrace& trace) {
  std::vector<std::int64_t> times;
  times.reserve(trace.operators.size());
  for (const TracedOperator& each : trace.operators) times.push_back(each.nanoseconds);
  return times;
}

// The first time is slow.
void take_least_times(OperatorTrace& trace, std::span<const std::int64_t> before) {
  for (std::size_t i = 0; i < trace.operators.size(); ++i)
    trace.operators[i].nanoseconds = std::min(trace.operators[i].nanoseconds, before[i]);
}

}  // namespace

const ActivationsHere* ActivationsHere::current() {
  const ActivationsHere* const here = ThreadShared<ActivationsHere>::here();
  if (here != nullptr && here->window != nullptr) return here;
  const RunningBackward* const running = RunningBackward::current();
  return running != nullptr ? running->activations() : here;
}

at::Tensor keep(const at::Tensor& tensor) {
  if (ActivationWindow* const window = ActivationWindow::of(tensor)) window->keep(tensor);
  return tensor;
}

// To compute what is missing might take other ranks, which need not be there. Who reads it is told.
Activations::~Activations() {
  memory_.ask({});
  if (here_ && here_->window == window_.get()) here_->window = nullptr;
  if (here_ && here_->parameters == parameters_.get()) here_->parameters = nullptr;
  if (window_) window_->abandon();
  for (const auto& each : past_) each->abandon();
}

void Activations::limit(const Plan& plan, std::unique_ptr<ParametersAgain> parameters) {
  if (memory_.observes()) use_reporting_allocator();
  store_ = ActivationStore::make(plan[State::activation], accounts_);
  budget_ = plan.activation_budget();
  bytes_ = report_.budget_bytes = budget_.bytes;
  parameters_ = std::move(parameters);
}

void Activations::run(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  SeesThread<kBelowKey>::stop_if_none();
  const ActivationsHere* const here = ActivationsHere::current();
  if (here != nullptr && here->window != nullptr) return here->window->run(op, keys, stack);
  const OperatorKind& kind = OperatorKind::of(op);
  if (kind.composite) return op.redispatchBoxed(keys, stack);
  const std::size_t count = op.schema().arguments().size();
  const std::span<const c10::IValue> arguments{stack->data() + (stack->size() - count), count};
  if (!kind.views)
    for (const c10::IValue& value : arguments)
      for_each_defined(value, [&](const at::Tensor& tensor) {
        if (ActivationWindow* const window = ActivationWindow::of(tensor)) window->touch(tensor);
      });
  if (!kind.views && ActivationWindow::has_paged_in() && here != nullptr && here->parameters != nullptr)
    ActivationWindow::page_in(*here->parameters, arguments);
  const c10::impl::ExcludeDispatchKeyGuard off(kBelowKey);
  op.redispatchBoxed(keys, stack);
}

void Activations::begin_forward(bool trains) {
  if (trains && !fault_.empty())
    throw ConfigError(std::exchange(fault_, {}), "give it so much, or take smaller micro-batches");
  const bool goes_on = trains && window_ && !complete_ && window_->anything_living();
  if (!goes_on) {
    pause();
    memory_.forget();
  }
  memory_.start();
  if (trains && parameters_) open();
}

void Activations::open() {
  const auto here = ThreadShared<ActivationsHere>::own();
  if (!window_) {
    FollowedPlan::Plans plans;
    if (!std::exchange(known_.record_anew, false)) plans.assign(known_.plans.begin(), known_.plans.end());
    window_ = std::make_shared<ActivationWindow>(
        ActivationSetting{memory_, *parameters_, store_.get(), observer_, bytes_ > 0 ? bytes_ : kUnlimited,
                          static_cast<std::size_t>(report_.operators)},
        std::move(plans));
    complete_ = false;
  }
  window_->move_here();
  if (!seeing_ || here_ != here) seeing_.emplace();
  here_ = here;
  here_->window = window_.get();
  here_->parameters = parameters_.get();
  memory_.ask([window = window_.get()](std::int64_t bytes) { window->allocating(bytes); });
}

void Activations::end_forward() {
  if (here_ && here_->window == window_.get()) here_->window = nullptr;
  memory_.stop();
}

void Activations::begin_backward() {
  memory_.start();
  if (window_) open();
}

void Activations::end_backward(bool complete) {
  end_forward();
  if (window_) window_->move_here();  // threads of devices had it
  if (!window_ || !complete || complete_) return;
  complete_ = true;
  learn();
}

// Nothing is recorded of it any more.
void Activations::pause() {
  memory_.ask({});
  std::erase_if(past_, [](const auto& each) { return !each->anything_living(); });
  if (!window_) return;
  if (here_ && here_->window == window_.get()) here_->window = nullptr;
  const std::shared_ptr<ActivationWindow> window = std::exchange(window_, nullptr);
  if (window->anything_missing())
    past_.push_back(window);
  else
    window->close();
  if (past_.empty()) seeing_.reset();
}

void Activations::settle() {
  pause();
  for (const auto& each : past_) each->close();
  past_.clear();
  seeing_.reset();
}

void Activations::learn() {
  const std::shared_ptr<PlannedMicroBatch> followed = window_->plan();
  report_.peak_bytes = window_->peak();
  report_.operators = static_cast<std::int64_t>(window_->trace().operators.size());
  report_.recomputations = window_->so_far().again;
  report_.moved_bytes = window_->so_far().moved;
  report_.planned_bytes = followed ? followed->plan.peak : 0;
  if (window_->kept_to_plan()) {
    followed->proven = true;
    std::erase(known_.plans, followed);
    known_.plans.push_front(followed);
  } else if (window_->recorded_all()) {
    learn(window_->trace());
  } else {
    known_.record_anew = true;
  }
}

void Activations::learn(const OperatorTrace& trace) {
  if (report_.unlimited_bytes == 0 || budget_.share > 0) set_budget(trace);
  const std::uint64_t its = signature(trace);
  const auto before = std::ranges::find(known_.seen_once, its, &Known::Seen::signature);
  if (before != known_.seen_once.end()) {
    OperatorTrace planned = trace;
    take_least_times(planned, before->nanoseconds);
    known_.seen_once.erase(before);
    plan(std::move(planned));
  } else if (report_.peak_bytes <= bytes_ || budget_.share > 0) {
    known_.seen_once.push_front({its, times_of(trace)});
    if (known_.seen_once.size() > kMostShapes) known_.seen_once.pop_back();
  } else {
    plan(trace);
  }
}

void Activations::set_budget(const OperatorTrace& trace) {
  const std::int64_t all = unlimited_peak(trace);
  report_.unlimited_bytes = std::max(report_.unlimited_bytes, all);
  if (budget_.share > 0)
    bytes_ = static_cast<std::int64_t>(budget_.share * static_cast<double>(report_.unlimited_bytes));
  report_.budget_bytes = bytes_;
}

void Activations::plan(OperatorTrace trace) {
  const auto began = std::chrono::steady_clock::now();
  level_times(trace);
  const StoredWay way = store_ ? store_->way() : StoredWay();
  auto plan = activation_plan(trace, bytes_ - std::min(kMostSlack, bytes_ / 256), activation_trials().seed, way);
  report_.planning_seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  if (!plan) {
    if (activation_trials().refuses) fault_ = refusal(trace);
    return;
  }
  std::int64_t all = 1;
  for (const TracedOperator& each : trace.operators) all += each.nanoseconds;
  report_.recomputation_share = static_cast<double>(plan->nanoseconds) / static_cast<double>(all);
  std::erase_if(known_.plans, [its = signature(trace)](const auto& each) { return signature(each->trace) == its; });
  known_.plans.push_front(std::make_shared<PlannedMicroBatch>(PlannedMicroBatch{std::move(trace), *std::move(plan)}));
  if (known_.plans.size() > kMostShapes) known_.plans.pop_back();
}

std::string Activations::refusal(const OperatorTrace& trace) const {
  const LargestNeed largest = largest_need(trace);
  return "an activation budget of " + std::to_string(bytes_) +
         " bytes cannot be met: the least for this micro-batch is " +
         std::to_string(least_budget(trace, store_ ? store_->way() : StoredWay())) + ", of " +
         std::to_string(unlimited_peak(trace)) + " without a budget; most alone needs " +
         window_->describe(largest.op) + ", " + std::to_string(largest.bytes);
}

}  // namespace zero
