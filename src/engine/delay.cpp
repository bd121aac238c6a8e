// When an engine whose plan delays updates begins them, and takes over what they wrote.
#include <algorithm>

#include "backwards/unwatched.h"
#include "base/lap.h"
#include "engine/impl.h"
#include "partition/transitions.h"
#include "zero/error.h"

namespace zero {

void Engine::Impl::delay_updates() {
  for (std::size_t i = 0; i < rules_.size(); ++i)
    if (full_tensor_work(rules_[i].optimizer))
      throw ConfigError("optimizer " + std::string(name(rules_[i].optimizer)) + " of parameter '" + infos_[i].name +
                            "' computes steps of whole tensors with the other ranks, which a delayed update cannot",
                        "use one that goes element by element, or do without Plan::delay_update()");
  const Tier computed_in = accounts_.device().is_host() ? Tier::device : Tier::host;
  delayed_ = std::make_unique<DelayedUpdate>(
      updater_, accounts_.store(State::parameter, computed_in, accounts_.lasting()), static_cast<int>(units_.size()));
  gradients_->before_change([this](int unit) { delayed_->wait_for_gradient(unit); });
  micro_batch_.before_evaluation([this] { before_evaluation(); });
}

// Returns the seconds that it took to begin: the update itself goes on beside the next step.
double Engine::Impl::begin_delayed(const StepDecision& decision, double lr_factor) {
  double taken = 0;
  const Lap lap(taken);
  told_.reset();
  pager_->forget();  // see take_over_in_step()
  std::vector<UnitStep> steps;
  for (Unit* const unit : in_order_of_updates()) {
    if (!updater_.prepared(*unit)) {
      pager_->settle_published(*unit);
      const TierMeter::Apart apart;
      updater_.prepare_late(*unit);
    }
    steps.push_back(next_step(*unit, decision, lr_factor));
  }
  delayed_->begin(std::move(steps));
  exchange_.be_behind(true);
  return taken;
}

// The parameters are those of the latest step from here on. Collective where updates are.
void Engine::Impl::take_over_delayed() {
  if (!delayed_->under_way()) return;
  const Exchange::Changing changing(exchange_);
  const Unwatched unwatched;
  broken_ = "a delayed update failed: some parameters are updated and others are not";
  pager_->forget();
  settle_parameters();
  delayed_->take_over([this](Unit& unit) { updated(unit); });
  exchange_.be_behind(false);
  renew(Exchange::Kind::publish);
  broken_ = nullptr;
}

// Every step gathers and exchanges the same, those too that have nothing to take over: the first, and one behind an
// evaluation, which took it over already.
void Engine::Impl::take_over_in_step() {
  if (delayed_->under_way()) return take_over_delayed();
  renew(Exchange::Kind::publish);
}

// The same for `call`, which is to see them, between steps. Throws StateError within one.
void Engine::Impl::catch_up(const char* call) {
  if (!delayed_ || !delayed_->under_way()) return;
  if (!in_backward_) settle_emptied();
  if (micro_ > 0 || micro_batch_.under_way())
    throw StateError(
        rank_text() + ": " + call + " within a step, which computes with the parameters of the step before",
        "call it between step() and the next forward, or do without Plan::delay_update()");
  told_.reset();
  meet_before_taking_over();
  take_over_delayed();
}

// What a rank has asked for ahead, and its peers may not have wanted, it is to have of the parameters before.
void Engine::Impl::meet_before_taking_over() {
  if (common()) return exchange_.run({Exchange::Kind::read, -1, 0, barrier()});
  if (std::ranges::none_of(units_, [](const auto& unit) { return unit->gathers(); })) return;
  exchange_.run({.kind = Exchange::Kind::read,
                 .run = [](const Groups&) {},
                 .axis = exchange_.gathers_along(),
                 .lane = Exchange::Lane::control});
}

TierMeter& Engine::Impl::tiers() {
  if (delayed_) delayed_->settle();
  return accounts_.tiers();
}

// Between steps, evaluations see the latest parameters; within one, those that it computes with.
void Engine::Impl::before_evaluation() {
  if (!delayed_->under_way()) return;
  settle_emptied();
  if (micro_ == 0) catch_up("an evaluation");
}

}  // namespace zero
