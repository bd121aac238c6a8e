// The end of a step: vote, update, publish.
#include <algorithm>
#include <cmath>
#include <limits>

#include "backwards/unwatched.h"
#include "base/hash.h"
#include "base/lap.h"
#include "base/text.h"
#include "engine/engine_optimizer.h"
#include "engine/impl.h"
#include "partition/transitions.h"
#include "zero/error.h"

namespace zero {

StepSummary Engine::Impl::summary() {
  StepSummary summary;
  sums_.clear_squares();
  summary.requests = requests_;
  summary.save_ended = saver_ && saver_->ended();
  summary.rates = rates();
  summary.present.assign(infos_.size(), 0);
  // From the end, so that what the update needs first was read last.
  for (auto at = units_.rbegin(); at != units_.rend(); ++at) {
    const auto& unit = *at;
    const UnitLayout& layout = unit->layout();
    const HeldGradient* const held = gradients_->held(unit->index());
    if (held == nullptr) continue;
    for (std::size_t slot = 0; slot < layout.slots().size(); ++slot)
      summary.present[static_cast<std::size_t>(layout.slots()[slot].index)] =
          gradients_->arrived(unit->index(), static_cast<int>(slot));
    const auto add_squares = [&](const void* values, std::int64_t, std::int64_t count) {
      sums_.add_squares(held->device(), values, held->dtype(), count);
    };
    gradients_->read(unit->index(), {unit->slice_begin(), layout.shard_length()}, add_squares);
  }
  summary.sums = sums_.read();
  return summary;
}

// By which ranks' learning rates and other values of groups are compared, those that the program sets.
std::uint32_t Engine::Impl::rates() const {
  std::string bytes;
  for (int i = 0; i < static_cast<int>(infos_.size()); ++i) {
    const double rate = updater_.lr(i);
    bytes.append(reinterpret_cast<const char*>(&rate), sizeof rate);
  }
  if (optimizer_) bytes += optimizer_->changes();
  return static_cast<std::uint32_t>(fnv1a(bytes) >> (64 - kRateBits));
}

void Engine::Impl::require_same_rates(const StepDecision& decision) const {
  if (!decision.other_rates) return;
  const std::string changes = optimizer_ ? optimizer_->changes() : std::string();
  throw StateError(
      rank_text() + ": learning rates, or other values of the optimizer's groups, differ between ranks 0 " + "and " +
          std::to_string(*decision.other_rates) + "; this one has a rate of " + shortest(lr_) +
          " of parameters in no group" + (changes.empty() ? "" : ", and " + changes) + ". Nothing was updated",
      "set the same on every rank, and call step() again");
}

StepDecision Engine::Impl::vote() {
  StepSummary mine = summary();
  const std::vector<std::int64_t> words = pack(mine, plan_);
  if (exchange_.size() == 1) return count(words, resolved_, 1, infos_.size());
  std::vector<std::int64_t> table(words.size() * static_cast<std::size_t>(exchange_.size()));
  const auto count_of = [](const auto& v) { return static_cast<std::int64_t>(v.size()); };
  exchange_.run({.kind = Exchange::Kind::vote,
                 .count = count_of(words),
                 .run =
                     [&](const Groups& groups) {
                       groups.gather({words.data(), count_of(words), Dtype::i64},
                                     {table.data(), count_of(table), Dtype::i64}, Axis::data);
                     },
                 .lane = Exchange::Lane::control});
  return count(table, resolved_, exchange_.mesh(), infos_.size());
}

StepDecision Engine::Impl::timed_vote(StepReport& report) {
  const Lap lap(report.vote_seconds);
  return vote();
}

double Engine::Impl::micro_batches() const {
  return static_cast<double>(exchange_.size()) * plan_.accumulate();
}

// What the held gradient is to be divided by.
double Engine::Impl::held_times() const {
  return (resolved_.holds_mean() ? 1.0 : exchange_.size()) * plan_.accumulate() * scaler_.value();
}

// The mean, the loss scale and clipping, as one factor (torch::nn::utils::clip_grad_norm_'s rule).
double Engine::Impl::scale_of(const StepDecision& decision) const {
  const double mean = 1.0 / held_times();
  if (options_.clip <= 0) return mean;
  return mean * std::min(1.0, options_.clip / (decision.norm * mean + 1e-6));
}

StepReport Engine::Impl::step() {
  check_alive();
  check_module();
  check_idle("step()");
  const Acting acting(observer_, Activity::step);
  heed_emptied();
  agree_on_emptied();
  last_step_ = accounts_.explaining_memory("step()", [&] { return attempt(); });
  return last_step_;
}

double Engine::Impl::factor_on_rates() const {
  const double factor = options_.schedule ? options_.schedule(steps_) : 1.0;
  if (std::isfinite(factor)) return factor;
  throw ConfigError(
      rank_text() + ": Options::schedule gives the factor " + shortest(factor) + " for step " + std::to_string(steps_),
      "it is a finite number");
}

StepReport Engine::Impl::attempt() {
  StepReport report;
  report.step = steps_;
  stepped_ = micro_;
  if (micro_ < plan_.accumulate()) return report;
  heed_groups();
  const double lr_factor = factor_on_rates();
  check_not_gathered("step()");
  check_parameters();
  check_float8();
  micro_batch_.end_forward();
  const StepDecision decision = timed_vote(report);
  require_same_rates(decision);
  const Exchange::Changing changing(exchange_);
  if (delayed_) take_over_in_step();
  follow_groups();
  requests_ = 0;
  report.requests = decision.requests;
  report_save(decision.save_ended, report);
  if (float8_) float8_->settle(decision.largest);
  report.skipped = decision.overflow;
  report.applied = !decision.overflow;
  report.loss = decision.loss / micro_batches();
  report.grad_norm = decision.norm / held_times();
  report.lr = lr_ * lr_factor;
  report.loss_scale = scaler_.value();
  if (report.skipped) {
    report.grad_norm = std::numeric_limits<double>::infinity();
    ++skipped_;
  } else {
    report.group_norms = group_norms();
    broken_ = "a step failed halfway: some parameters are updated and others are not";
    renormalise();
    report.update_seconds = delayed_ ? begin_delayed(decision, lr_factor) : update(decision, lr_factor);
    broken_ = nullptr;
    report.step = ++steps_;
  }
  report.gather_seconds = pager_->take_seconds();
  report.reduce_seconds = gradients_->take_seconds();
  start_window();
  scaler_.update(report.skipped);
  if (float8_) float8_->set_loss_scale(scaler_.value());
  return report;
}

// Rows that were looked up get their largest norm where they live, as lookups have seen them: before an update, and
// before anybody reads them otherwise.
void Engine::Impl::renormalise() {
  if (max_norms_.empty()) return;
  const auto gather = [this](ConstView mine, View all) {
    exchange_.run({Exchange::Kind::read, -1, mine.count,
                   [=](const Groups& groups) { groups.along(Axis::data).all_gather(mine, all).wait(); }});
  };
  const std::vector<MaxNorms::Due> due = max_norms_.settle(exchange_.size(), gather);
  const Unwatched unwatched;
  for (const auto& [table, indices] : due) {
    const at::Tensor& parameter = parameter_at(table.parameter);
    Unit& unit = *Unit::of(parameter.unsafeGetTensorImpl());
    const Pinned whole(*pager_, unit);
    MaxNorms::renormalise(table, parameter.detach(), indices);
    keep(unit, {});
  }
}

// By its number in the layout.
const at::Tensor& Engine::Impl::parameter_at(int index) const {
  for (const auto& unit : units_)
    for (std::size_t slot = 0; slot < unit->parameters().size(); ++slot)
      if (unit->layout().slots()[slot].index == index) return unit->parameters()[slot];
  throw StateError(rank_text() + ": there is no parameter " + std::to_string(index));
}

// Those that the device computes come first: its kernels run while the host computes the others.
std::vector<Unit*> Engine::Impl::in_order_of_updates() const {
  std::vector<Unit*> order;
  for (const auto& unit : units_)
    if (gradients_->held(unit->index()) != nullptr) order.push_back(unit.get());
  std::ranges::stable_partition(order, [&](const Unit* unit) { return updater_.beside_host(*unit); });
  return order;
}

// The unit's part of the step that was decided on.
UnitStep Engine::Impl::next_step(Unit& unit, const StepDecision& decision, double lr_factor) {
  return updater_.next_step(unit, *gradients_->held(unit.index()), decision.present, scale_of(decision), lr_factor);
}

// Returns the seconds that the updates took.
double Engine::Impl::update(const StepDecision& decision, double lr_factor) {
  double taken = 0;
  told_.reset();
  pager_->forget();
  Passage passage = updater_.passage();
  const Unit* latest = nullptr;
  const auto finish = [&] {
    if (latest != nullptr) updater_.finish(passage, *latest);
  };
  for (Unit* const unit : in_order_of_updates()) {
    pager_->settle_published(*unit);
    const Lap lap(taken);
    if (!updater_.prepared(*unit)) {
      finish();  // its first state goes through the same buffers
      const TierMeter::Apart apart;
      updater_.prepare_late(*unit);
    }
    updater_.step(passage, next_step(*unit, decision, lr_factor), [this, unit] { updated(*unit); });
    latest = unit;
  }
  {
    const Lap lap(taken);
    finish();
  }
  renew(Exchange::Kind::publish);
  return taken;
}

// Its parameters at rest on this rank.
void Engine::Impl::updated(Unit& unit) {
  for (const at::Tensor& parameter : unit.parameters()) parameter.unsafeGetTensorImpl()->bump_version();
  publish(unit, Exchange::Kind::publish);
}

bool Engine::Impl::common() const {
  return std::any_of(units_.begin(), units_.end(), [](const auto& unit) { return unit->common(); });
}

// This rank has written its part of the common units.
void Engine::Impl::renew(Exchange::Kind kind) {
  if (common()) pager_->renew(exchange_.submit({kind, -1, 0, barrier()}));
}

// Of those that have a unit's shards between them.
std::function<void(const Groups&)> Engine::Impl::barrier() const {
  return [axis = movement(resolved_).within](const Groups& groups) { groups.along(axis).barrier().wait(); };
}

// Parameters of which each rank updated a part of what it holds.
void Engine::Impl::publish(Unit& unit, Exchange::Kind kind) {
  if (!movement(resolved_).publishes) return;
  accounts_.device().follow_sends();
  const Held updated = held_at_rest(resolved_, State::optimizer, unit.layout(), exchange_.rank());
  const Held kept = held_at_rest(resolved_, State::parameter, unit.layout(), exchange_.rank());
  const View mine = unit.home(updated), all = unit.home();
  const bool part = unit.paged();
  if (!part) unit.suspend();
  Pending arrival = exchange_.submit(
      {kind, unit.index(), all.count, [mine, all, from = *updated.over, to = kept.over](const Groups& groups) {
         groups.gather(mine, all, from, to);
       }});
  part ? pager_->renew(std::move(arrival)) : pager_->expect(unit, std::move(arrival));
}

void Engine::Impl::start_window() {
  empty_step();
  micro_batch_.next_step();
  consumed_ += std::int64_t{plan_.accumulate()} * exchange_.size();
  number_from(0);
}

}  // namespace zero
