#include "ranks/scenario/plain_course.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <sstream>
#include <utility>

#include "ranks/scenario/engine_course.h"
#include "ranks/scenario/settings.h"
#include "ranks/torch_optimizers.h"

namespace zero::test::scenario {

bool has_plain(const Scenario& scenario) {
  return has_plain_optimizer(scenario) && !draws(scenario) && !gathers_in_codes(scenario) && !saturates(scenario);
}

PlainCourse::PlainCourse(const Scenario& scenario, const Log& decided, Log& log, bool shaken)
    : scenario_(scenario),
      decided_(decided),
      log_(log),
      course_(scenario),
      network_(make_network(scenario, 0)),
      parameters_(network_->parameters_once()) {
  std::vector<ParameterInfo> infos;
  for (const auto& [name, parameter] : parameters_)
    infos.push_back({name, parameter.sizes().vec(), name.find("embed") != std::string::npos});
  const std::vector<ParamGroup> groups = options_of(scenario, "").groups;
  rules_ = parameter_rules(optimizer_of(scenario), groups, infos);
  for (const ParameterInfo& info : infos) {
    const auto taker = std::ranges::find_if(groups, [&](const ParamGroup& group) { return group.takes(info); });
    group_of_.push_back(static_cast<std::size_t>(taker - groups.begin()));
  }
  if (shaken) shake();
  begin();
}

void PlainCourse::shake() {
  const torch::NoGradGuard no_grad;
  const double rounding = plain_rounding(scenario_);
  for (auto& [name, parameter] : parameters_) {
    const at::Tensor odd = at::arange(parameter.numel()).remainder(2).reshape(parameter.sizes());
    parameter.mul_(1 + rounding * (2 * odd - 1).to(parameter.scalar_type()));
  }
}

// With an optimizer that has seen nothing yet.
void PlainCourse::begin() {
  std::vector<at::Tensor> parameters;
  for (const auto& item : parameters_) parameters.push_back(item.second);
  optimizer_ = torch_optimizer(parameters, rules_);
  steps_ = 0;
  lr_ = learning_rate(optimizer_of(scenario_));
  shares_.clear();
  for (const ParameterRule& rule : rules_) shares_.push_back(learning_rate(rule.optimizer) * rule.lr_scale / lr_);
}

void PlainCourse::run() {
  for (const Event& event : scenario_.events) {
    log_.at_event(log_.event() + 1);
    carry_out(event);
    course_.follow(event);
  }
  log_.at_event(log_.event() + 1);
  if (course_.in_step()) empty({});
  take_over();
  read({});
  log_.see("steps", static_cast<double>(steps_));
}

void PlainCourse::carry_out(const Event& event) {
  switch (event.act) {
    case Act::backward: return backward(event);
    case Act::step: return step();
    case Act::zero_grad: return empty(event);
    case Act::discard: return empty({});
    case Act::evaluate: return evaluate(event);
    case Act::freeze:
    case Act::thaw:
      for (auto& [name, parameter] : network_->part(event.part, false))
        parameter.requires_grad_(event.act == Act::thaw);
      return;
    case Act::read: return read(event);
    case Act::write: return write(event);
    case Act::gradient: return gradient(event);
    case Act::clamp:
      for (const auto& item : parameters_)
        if (item.second.grad().defined()) item.second.grad().clamp_(-0.02, 0.02);
      return;
    case Act::set_lr: return set_lr(event);
    case Act::save: return save();
    case Act::load: return load();
    case Act::move:
      take_over();
      lr_ = learning_rate(optimizer_of(scenario_));
      for (std::size_t i = 0; i < rules_.size(); ++i)
        shares_[i] = learning_rate(rules_[i].optimizer) * rules_[i].lr_scale / lr_;
      return;
    case Act::release:
      take_over();
      read({});
      return begin();
    default: return;
  }
}

double PlainCourse::micro_batches() const {
  return static_cast<double>(ranks_of(scenario_)) * accumulate_of(scenario_);
}

void PlainCourse::backward(const Event& event) {
  for (int rank = 0; rank < ranks_of(scenario_); ++rank) {
    if (has(event.some, rank)) continue;
    micro_batch(event, event.which == 3 ? 0 : event.which, rank, 0);
    if (event.which == 3) micro_batch(event, 1, rank, 1);
  }
}

void PlainCourse::micro_batch(const Event& event, int which, int rank, int ahead) {
  const std::int64_t index = course_.micro_batch(rank, ahead);
  std::vector<at::Tensor> losses = network_->losses(which, {index, rank});
  at::Tensor sum = losses.front();
  for (std::size_t i = 0; i < losses.size(); ++i) {
    if (has(event.infinite, rank)) losses[i] = losses[i] * std::numeric_limits<double>::infinity();
    log_.see(loss_name(which, static_cast<int>(i), index, course_.window()), losses[i].item<double>());
    sum = i == 0 ? losses[0] : sum + losses[i];
  }
  loss_ += sum.item<double>();
  (sum / micro_batches()).backward();
}

// By group, those in none last.
std::vector<double> PlainCourse::squares() const {
  std::vector<double> sums(options_of(scenario_, "").groups.size() + 1);
  for (std::size_t i = 0; i < parameters_.size(); ++i)
    if (const at::Tensor& gradient = parameters_[i].second.grad(); gradient.defined())
      sums[group_of_[i]] += gradient.to(at::kDouble).square().sum().item<double>();
  return sums;
}

// But for those that overflow in 16 bits, after which the step is to be skipped.
void PlainCourse::gradient(const Event& event) {
  for (const auto& [name, parameter] : network_->part(event.part)) {
    const Seen* const decided = decided_.find(log_.event(), "gradient of " + name);
    const bool overflows = in_16_bits(scenario_) && decided != nullptr && !decided->value.isfinite().all().item<bool>();
    if (parameter.grad().defined() && !overflows) log_.see("gradient of " + name, parameter.grad());
  }
}

bool PlainCourse::overflows(double norm) const {
  if (!in_16_bits(scenario_)) return !std::isfinite(norm);
  const Seen* const skipped = decided_.find(log_.event(), "skipped");
  return skipped != nullptr && skipped->value.item<double>() != 0;
}

void PlainCourse::step() {
  const bool whole = course_.micro() >= accumulate_of(scenario_);
  const std::vector<double> squares = this->squares();
  const double norm = std::sqrt(std::accumulate(squares.begin(), squares.end(), 0.0));
  const bool skipped = whole && overflows(norm);
  log_.see("applied", whole && !skipped);
  if (!whole) return;
  log_.see("skipped", skipped);
  log_.see("loss", loss_ / micro_batches());
  log_.see("norm", skipped ? std::numeric_limits<double>::infinity() : norm);
  for (std::size_t i = 0; i < squares.size() && !skipped; ++i) log_.see(group_norm_name(i), std::sqrt(squares[i]));
  Update update;
  if (!skipped) update = take_update(norm);
  take_over();
  if (!skipped) {
    ++steps_;
    if (delays(scenario_))
      late_ = std::move(update);
    else
      apply(update);
  }
  log_.see("steps", static_cast<double>(steps_));
  empty({});
}

PlainCourse::Update PlainCourse::take_update(double norm) {
  const Options options = options_of(scenario_, "");
  const double scale = options.clip > 0 ? std::min(1.0, options.clip / (norm + 1e-6)) : 1.0;
  const double factor = options.schedule ? options.schedule(steps_) : 1.0;
  log_.see("learning rate", lr_ * factor);
  Update update;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const at::Tensor& gradient = parameters_[i].second.grad();
    update.gradients.push_back(gradient.defined() ? gradient * scale : at::Tensor());
    update.rates.push_back(lr_ * shares_[i] * factor);
  }
  return update;
}

void PlainCourse::apply(const Update& update) {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    parameters_[i].second.mutable_grad() = update.gradients[i];
    optimizer_->param_groups()[i].options().set_lr(update.rates[i]);
  }
  optimizer_->step();
  optimizer_->zero_grad();
}

// Of a step that is late: who sees parameters sees its update.
void PlainCourse::take_over() {
  if (!late_) return;
  std::vector<at::Tensor> gradients;
  for (const auto& item : parameters_) gradients.push_back(item.second.grad());
  apply(*std::exchange(late_, std::nullopt));
  for (std::size_t i = 0; i < gradients.size(); ++i) parameters_[i].second.mutable_grad() = gradients[i];
}

void PlainCourse::empty(const Event& event) {
  if (event.act == Act::zero_grad && !course_.empties()) return;
  for (auto& [name, parameter] : network_->part(event.part, event.part == 0)) parameter.mutable_grad().reset();
  if (event.part == 0) loss_ = 0;
}

void PlainCourse::evaluate(const Event& event) {
  if (course_.micro() == 0) take_over();
  if (has_buffers(scenario_)) return;
  const torch::NoGradGuard no_grad;
  for (int rank = 0; rank < ranks_of(scenario_); ++rank)
    if (!has(event.some, rank))
      log_.see("evaluation of rank " + std::to_string(rank),
               network_->losses(0, {1000 + log_.event(), rank}).front().item<double>());
}

void PlainCourse::read(const Event& event) {
  if (course_.micro() == 0) take_over();
  for (const auto& [name, parameter] : network_->part(event.part)) log_.see(name, parameter);
}

void PlainCourse::write(const Event& event) {
  take_over();
  const torch::NoGradGuard no_grad;
  for (auto& [name, parameter] : network_->part(event.part)) {
    if (event.how == 2) continue;
    parameter.mul_(event.how == 1 ? 0.5 : 0.75);
    if (event.how == 0) parameter.add_(0.01);
  }
}

void PlainCourse::set_lr(const Event& event) {
  switch (event.which) {
    case 0: lr_ *= 0.5; break;
    case 1: lr_ *= 2; break;
    case 2: lr_ = event.how == 0 ? 0 : lr_ * 0.5; break;
    default:
      lr_ = 0.003;
      if (event.how == 1) std::fill(shares_.begin(), shares_.end(), 1.0);
  }
}

void PlainCourse::save() {
  take_over();
  saved_ = {.steps = steps_};
  for (const auto& item : parameters_) saved_.parameters.push_back(item.second.detach().clone());
  torch::serialize::OutputArchive archive;
  optimizer_->save(archive);
  std::ostringstream stream;
  archive.save_to(stream);
  saved_.optimizer = stream.str();
}

void PlainCourse::load() {
  take_over();
  const double lr = lr_;
  const std::vector<double> shares = shares_;
  begin();
  lr_ = lr;
  shares_ = shares;
  steps_ = saved_.steps;
  const torch::NoGradGuard no_grad;
  for (std::size_t i = 0; i < parameters_.size(); ++i) parameters_[i].second.copy_(saved_.parameters[i]);
  std::istringstream stream(saved_.optimizer);
  torch::serialize::InputArchive archive;
  archive.load_from(stream);
  optimizer_->load(archive);
}

}  // namespace zero::test::scenario
