#include "engine/step.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "backwards/paged_activations.h"
#include "backwards/unwatched.h"
#include "base/random.h"
#include "base/text.h"
#include "base/timed_scope.h"
#include "zero/error.h"

namespace zero {

Step::Step(Trained& trained, EngineRanks& ranks, Liveness& life, Parameters& parameters, Accumulation& accumulation)
    : trained_(trained),
      ranks_(ranks),
      life_(life),
      parameters_(parameters),
      accumulation_(accumulation),
      lr_(learning_rate(trained.optimizer())) {
  if (parameters.delayed() != nullptr) parameters.micro_batch().before_evaluation([this] { before_evaluation(); });
}

void Step::resume(std::int64_t steps, std::int64_t skipped) {
  steps_ = steps;
  skipped_ = skipped;
}

// By which ranks' learning rates and other values of groups are compared, those that the program sets.
std::uint32_t Step::rates() const {
  std::string bytes;
  for (int i = 0; i < static_cast<int>(trained_.parameters()); ++i) {
    const double rate = parameters_.updater().lr(i);
    bytes.append(reinterpret_cast<const char*>(&rate), sizeof rate);
  }
  if (optimizer_) bytes += optimizer_->changes();
  return static_cast<std::uint32_t>(fnv1a(bytes) >> (64 - kRateBits));
}

void Step::require_same_rates(const StepDecision& decision) const {
  if (!decision.other_rates) return;
  const std::string changes = optimizer_ ? optimizer_->changes() : std::string();
  throw StateError("learning rates, or other values of the optimizer's groups, differ between ranks 0 and " +
                       std::to_string(*decision.other_rates) + "; this one has a rate of " + shortest(lr_) +
                       " of parameters in no group" + (changes.empty() ? "" : ", and " + changes) +
                       ". Nothing was updated",
                   "set the same on every rank, and call step() again");
}

StepDecision Step::vote(bool save_ended) {
  StepSummary mine;
  gradients().add_to(mine);
  mine.requests = requests_;
  mine.save_ended = save_ended;
  mine.rates = rates();
  const std::vector<std::int64_t> words = pack(mine, trained_.plan());
  return count(ranks_.table(Exchange::Kind::vote, words), trained_.resolved(), ranks_.mesh(), ranks_.places(),
               trained_.parameters());
}

// The mean, the loss scale and clipping, as one factor (torch::nn::utils::clip_grad_norm_'s rule).
double Step::scale_of(const StepDecision& decision) const {
  const double mean = 1.0 / accumulation_.held_times();
  if (trained_.options().clip <= 0) return mean;
  return mean * std::min(1.0, trained_.options().clip / (decision.norm * mean + 1e-6));
}

double Step::factor_on_rates() const {
  const Schedule& schedule = trained_.options().schedule;
  const double factor = schedule ? schedule(steps_) : 1.0;
  if (std::isfinite(factor)) return factor;
  throw ConfigError("Options::schedule gives the factor " + shortest(factor) + " for step " + std::to_string(steps_),
                    "it is a finite number");
}

StepReport Step::take(bool& save_ended) {
  accumulation_.apply_zero_grad();
  accumulation_.agree_on_emptied();
  return last_ = attempt(save_ended);
}

StepReport Step::attempt(bool& save_ended) {
  StepReport report;
  report.step = steps_;
  const bool ended_here = std::exchange(save_ended, false);
  accumulation_.step_called();
  if (accumulation_.micro() < trained_.plan().accumulate()) return report;
  read_learning_rates();
  const double lr_factor = factor_on_rates();
  parameters_.require_no_scope("step()");
  parameters_.require_unchanged();
  gradients().require_float8();
  parameters_.micro_batch().end_forward();
  parameters_.micro_batch().activations().settle();
  const StepDecision decision = [&] {
    const TimedScope lap(report.vote_seconds);
    return vote(ended_here);
  }();
  require_same_rates(decision);
  const Exchange::Changing changing(ranks_.exchange());
  if (parameters_.delayed() != nullptr) apply_delayed_in_step();
  read_other_values();
  requests_ = 0;
  report.requests = decision.requests;
  save_ended = decision.save_ended;
  const auto& float8 = accumulation_.float8();
  LossScaler& scaler = accumulation_.scaler();
  if (float8) float8->settle(decision.largest);
  report.skipped = decision.overflow;
  report.applied = !decision.overflow;
  report.loss = decision.loss / (static_cast<double>(ranks_.size()) * trained_.plan().accumulate());
  report.grad_norm = decision.norm / accumulation_.held_times();
  report.lr = lr_ * lr_factor;
  report.loss_scale = scaler.value();
  if (report.skipped) {
    report.grad_norm = std::numeric_limits<double>::infinity();
    ++skipped_;
  } else {
    report.group_norms = gradients().group_norms();
    const Critical critical(life_, "a step failed halfway: some parameters are updated and others are not");
    parameters_.renormalise();
    report.update_seconds =
        parameters_.delayed() != nullptr ? begin_delayed(decision, lr_factor) : update(decision, lr_factor);
    report.step = ++steps_;
  }
  report.gather_seconds = parameters_.pager().take_seconds();
  report.reduce_seconds = accumulation_.gradients().take_seconds();
  accumulation_.gradients().settle_errors(report.skipped || steps_ % Plan::kErrorSteps == 0);
  accumulation_.next_step();
  scaler.update(report.skipped);
  if (scaler.value() != report.loss_scale) accumulation_.gradients().coded().begin_anew();
  if (float8) float8->set_loss_scale(scaler.value());
  return report;
}

// Those that the device computes come first: its kernels run while the host computes the others.
std::vector<Unit*> Step::in_order_of_updates() const {
  std::vector<Unit*> order;
  for (const auto& unit : parameters_.units())
    if (accumulation_.gradients().held(unit->index()) != nullptr) order.push_back(unit.get());
  std::ranges::stable_partition(order, [&](const Unit* unit) { return parameters_.updater().overlaps_host(*unit); });
  return order;
}

// The unit's part of the step that was decided on.
UnitStep Step::next_step(Unit& unit, const StepDecision& decision, double lr_factor) {
  return parameters_.updater().next_step(unit, *accumulation_.gradients().held(unit.index()), decision.present,
                                         scale_of(decision), lr_factor);
}

// Returns the seconds that the updates took.
double Step::update(const StepDecision& decision, double lr_factor) {
  double taken = 0;
  Updater& updater = parameters_.updater();
  parameters_.invalidate_state();
  parameters_.pager().forget();
  StagedPass passage = updater.passage();
  const Unit* latest = nullptr;
  const auto finish = [&] {
    if (latest != nullptr) updater.finish(passage, *latest);
  };
  for (Unit* const unit : in_order_of_updates()) {
    parameters_.pager().wait_for_publication(*unit);
    const TimedScope lap(taken);
    if (!updater.states().prepared(*unit)) {
      finish();  // its first state goes through the same buffers
      const TierMeter::SetupTraffic apart;
      updater.states().prepare_late(*unit);
    }
    updater.step(passage, next_step(*unit, decision, lr_factor), [this, unit] { parameters_.updated(*unit); });
    latest = unit;
  }
  {
    const TimedScope lap(taken);
    finish();
  }
  parameters_.renew(Exchange::Kind::publish);
  return taken;
}

// Returns the seconds that it took to begin: the update itself goes on beside the next step.
double Step::begin_delayed(const StepDecision& decision, double lr_factor) {
  double taken = 0;
  const TimedScope lap(taken);
  parameters_.invalidate_state();
  parameters_.pager().forget();  // see apply_delayed_in_step()
  std::vector<UnitStep> steps;
  for (Unit* const unit : in_order_of_updates()) {
    if (!parameters_.updater().states().prepared(*unit)) {
      parameters_.pager().wait_for_publication(*unit);
      const TierMeter::SetupTraffic apart;
      parameters_.updater().states().prepare_late(*unit);
    }
    steps.push_back(next_step(*unit, decision, lr_factor));
  }
  parameters_.delayed()->begin(std::move(steps));
  ranks_.exchange().be_behind(true);
  return taken;
}

void Step::write_delayed() {
  if (!parameters_.delayed()->under_way()) return;
  const Exchange::Changing changing(ranks_.exchange());
  const Unwatched unwatched;
  const Critical critical(life_, "a delayed update failed: some parameters are updated and others are not");
  parameters_.pager().forget();
  parameters_.wait_for_publication();
  parameters_.delayed()->take_over([this](Unit& unit) { parameters_.updated(unit); });
  ranks_.exchange().be_behind(false);
  parameters_.renew(Exchange::Kind::publish);
}

// Every step gathers and exchanges the same, those too that have nothing to write: the first, and one behind an
// evaluation, which wrote it already.
void Step::apply_delayed_in_step() {
  if (parameters_.delayed()->under_way()) return write_delayed();
  parameters_.renew(Exchange::Kind::publish);
}

void Step::finish_delayed_update(const char* call) {
  if (parameters_.delayed() == nullptr || !parameters_.delayed()->under_way()) return;
  if (!accumulation_.in_backward()) accumulation_.settle_emptied();
  if (accumulation_.micro() > 0 || parameters_.micro_batch().under_way())
    throw StateError(std::string(call) + " within a step, which computes with the parameters of the step before",
                     "call it between step() and the next forward, or do without Plan::delay_update()");
  parameters_.micro_batch().activations().settle();
  parameters_.invalidate_state();
  meet_before_writing();
  write_delayed();
}

// What a rank has asked for ahead, and its peers may not have wanted, it is to have of the parameters before.
void Step::meet_before_writing() {
  Exchange& exchange = ranks_.exchange();
  if (parameters_.any(&Unit::common)) return exchange.barrier(Exchange::Kind::read).wait();
  if (parameters_.any(&Unit::gathers)) exchange.meet();
}

// Between steps, evaluations see the latest parameters; within one, those that it computes with.
void Step::before_evaluation() {
  if (!parameters_.delayed()->under_way()) return;
  naming_rank(ranks_.rank_of_all(), [this] {
    accumulation_.settle_emptied();
    if (accumulation_.micro() == 0) finish_delayed_update("an evaluation");
  });
}

}  // namespace zero
