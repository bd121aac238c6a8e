#include "ranks/scenario/engine_course.h"

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <utility>

#include "ranks/scenario/settings.h"

namespace zero::test::scenario {

std::string loss_name(int which, int number, std::int64_t micro_batch, int window) {
  return "loss " + std::to_string(which) + " number " + std::to_string(number) + " of micro-batch " +
         std::to_string(micro_batch) + " in window " + std::to_string(window);
}

std::string group_norm_name(std::size_t group) {
  return "norm of group " + std::to_string(group + 1);
}

EngineCourse::EngineCourse(const Scenario& scenario, const World& world, std::string folder, Log& log)
    : scenario_(scenario),
      world_(world),
      folder_(std::move(folder)),
      log_(log),
      rank_(world.rank()),
      course_(scenario),
      network_(make_network(scenario, world.rank())) {}

void EngineCourse::run() {
  build(0);
  for (const Event& event : scenario_.events) {
    log_.at_event(log_.event() + 1);
    carry_out(event);
    course_.follow(event);
  }
  log_.at_event(log_.event() + 1);
  finish();
}

void EngineCourse::build(int plan) {
  building_ = true;
  const MeshShape mesh = mesh_of(scenario_, plan);
  engine_.emplace(*network_, Mesh(world_, {.shard = mesh.size(Axis::shard)}), plan_of(scenario_, plan),
                  optimizer_of(scenario_), options_of(scenario_, folder_));
  building_ = false;
  lr_ = learning_rate(optimizer_of(scenario_));
}

void EngineCourse::carry_out(const Event& event) {
  switch (event.act) {
    case Act::backward: return backward(event);
    case Act::step: return step(event);
    case Act::zero_grad: return zero_grad(event);
    case Act::discard: return engine_->discard();
    case Act::forward:
      return forward("dropped loss", event, event.how == 0 ? engine_->micro_batch() : course_.micro_batch(rank_),
                     Whose::turns);
    case Act::evaluate: return evaluate(event);
    case Act::freeze: return train(event, false);
    case Act::thaw: return train(event, true);
    case Act::read: return read(event);
    case Act::write: return write(event);
    case Act::gradient: return gradient(event);
    case Act::clamp: return clamp();
    case Act::set_lr: return set_lr(event);
    case Act::request:
      if (!has(event.some, rank_)) engine_->request(1U << rank_);
      return;
    case Act::save: return save("save " + std::to_string(log_.event()), event.how == 1);
    case Act::load: return load(saved_);
    case Act::move: return move(event);
    case Act::release: return release(event);
    case Act::count: return;
  }
}

void EngineCourse::backward(const Event& event) {
  if (has(event.some, rank_)) {
    for (int i = 0; i < backwards_of(event); ++i) engine_->backward(no_data());
    return;
  }
  if (event.which != 3) return micro_batch(event, event.which, 0);
  micro_batch(event, 0, 0);
  micro_batch(event, 1, 1);
}

void EngineCourse::micro_batch(const Event& event, int which, int ahead) {
  const std::int64_t index = engine_->micro_batch(), expected = course_.micro_batch(rank_, ahead);
  if (index != expected)
    throw std::runtime_error("micro_batch() is " + std::to_string(index) + ", not " + std::to_string(expected));
  std::vector<at::Tensor> losses = network_->losses(which, {index, rank_});
  for (std::size_t i = 0; i < losses.size(); ++i) {
    if (has(event.infinite, rank_)) losses[i] = losses[i] * std::numeric_limits<double>::infinity();
    log_.see(loss_name(which, static_cast<int>(i), index, course_.window()), losses[i].item<double>(),
             Whose::micro_batches);
  }
  go_backward(event, std::move(losses));
}

void EngineCourse::go_backward(const Event& event, std::vector<at::Tensor> losses) {
  if (event.how == 2) {
    for (at::Tensor& loss : losses) loss = engine_->scale(loss);
    return around_backward(losses, {}, [&] { torch::autograd::backward(losses, {}); });
  }
  if (losses.size() == 2) engine_->scale(losses.front()).backward({}, /*retain_graph=*/true);
  if (event.how == 1)
    engine_->scale(losses.back()).backward();
  else
    engine_->backward(losses.back());
}

void EngineCourse::step(const Event& event) {
  if (event.how == 0)
    engine_->step();
  else
    engine_->optimizer().step();
  const StepReport report = engine_->last_step();
  log_.see("applied", report.applied);
  if (!report.applied && !report.skipped) return;
  log_.see("skipped", report.skipped);
  log_.see("loss", report.loss);
  log_.see("norm", report.grad_norm);
  log_.see("learning rate", report.lr);
  log_.see("loss scale", report.loss_scale);
  log_.see("steps", static_cast<double>(report.step));
  log_.see("requests", report.requests);
  for (std::size_t i = 0; i < report.group_norms.size(); ++i) log_.see(group_norm_name(i), report.group_norms[i]);
  if (!report.save_fault.empty()) throw std::runtime_error(report.save_fault);
}

void EngineCourse::zero_grad(const Event& event) {
  if (event.part > 0) {
    for (auto& [name, parameter] : network_->part(event.part, false)) {
      if (event.how != 2)
        parameter.mutable_grad().reset();
      else if (parameter.grad().defined())
        parameter.mutable_grad().zero_();
    }
    return;
  }
  switch (event.how) {
    case 0: return network_->zero_grad();
    case 1: return engine_->optimizer().zero_grad();
    case 2: return network_->zero_grad(/*set_to_none=*/false);
    default:
      for (const auto& child : network_->children()) child->zero_grad();
  }
}

void EngineCourse::forward(const std::string& what, const Event& event, std::int64_t index, Whose whose) {
  if (!has(event.some, rank_))
    log_.see(what + " of rank " + std::to_string(rank_), network_->losses(0, {index, rank_}).front().item<double>(),
             whose);
}

void EngineCourse::evaluate(const Event& event) {
  const torch::NoGradGuard no_grad;
  network_->eval();
  forward("evaluation", event, 1000 + log_.event(), has_buffers(scenario_) ? Whose::turns : Whose::ranks);
  network_->train();
}

void EngineCourse::train(const Event& event, bool trained) {
  for (auto& [name, parameter] : network_->part(event.part, false)) parameter.requires_grad_(trained);
}

void EngineCourse::see_parameters(int part) {
  std::vector<at::Tensor> parameters;
  const auto named = network_->part(part);
  for (const auto& item : named) parameters.push_back(item.second);
  const auto whole = gather(parameters);
  for (const auto& [name, parameter] : named) log_.see(name, parameter);
}

void EngineCourse::read(const Event& event) {
  if (event.how == 0) return see_parameters(event.part);
  const torch::NoGradGuard no_grad;
  for (const auto& [name, parameter] : network_->part(event.part)) {
    if (event.how == 1) log_.see(name, parameter * 1);
    if (event.how == 2) log_.see(name, engine_->main_parameter(parameter));
  }
}

void EngineCourse::write(const Event& event) {
  struct Thrown {};
  const torch::NoGradGuard no_grad;
  std::vector<at::Tensor> parameters;
  for (const auto& item : network_->part(event.part)) parameters.push_back(item.second);
  const int writer = event.part % world_.size();
  try {
    const auto whole = gather(parameters, event.how == 1 ? std::optional(writer) : std::nullopt);
    for (at::Tensor& parameter : parameters) {
      switch (event.how) {
        case 0: parameter.mul_(0.75).add_(0.01); break;
        case 1: parameter.mul_(rank_ == writer ? 0.5 : 3.0); break;
        case 2: parameter.fill_(9); break;
        default: parameter.set_data(parameter.detach() * 0.75);
      }
    }
    if (event.how == 2) throw Thrown();
  } catch (const Thrown&) {
  }
}

void EngineCourse::gradient(const Event& event) {
  for (const auto& [name, parameter] : network_->part(event.part))
    if (parameter.requires_grad()) log_.see("gradient of " + name, engine_->gradient(parameter));
}

void EngineCourse::clamp() {
  engine_->for_each_gradient_slice(
      [](const GradientSlice& slice) { slice.sum.clamp_(-0.02 / slice.scale, 0.02 / slice.scale); });
}

void EngineCourse::set_lr(const Event& event) {
  const auto changed = [&](double lr) {
    switch (event.which) {
      case 0: return lr * 0.5;
      case 1: return lr * 2;
      case 2: return event.how == 0 ? 0.0 : lr * 0.5;
      default: return 0.003;
    }
  };
  lr_ = changed(lr_);
  if (event.how == 0) return engine_->set_lr(lr_);
  for (auto& group : engine_->optimizer().param_groups()) group.options().set_lr(changed(group.options().get_lr()));
}

void EngineCourse::save(const std::string& name, bool background) {
  saved_ = folder_ + "/" + name;
  engine_->save(saved_, {.background = background});
}

void EngineCourse::load(const std::string& name) {
  engine_->finish_save();
  engine_->load(name);
}

void EngineCourse::move(const Event& event) {
  const std::string folder = folder_ + "/move " + std::to_string(log_.event());
  engine_->save(folder);
  engine_->finish_save();
  const Network before = std::exchange(network_, make_network(scenario_, rank_));
  engine_.reset();
  const auto freeze = [&] {
    const auto from = before->parameters_once(), to = network_->parameters_once();
    for (std::size_t i = 0; i < to.size(); ++i) at::Tensor(to[i].second).requires_grad_(from[i].second.requires_grad());
  };
  if (event.how == 1 && !in_blocks_of_8_bits(scenario_)) freeze();
  build(event.which % static_cast<int>(scenario_.plans.size()));
  freeze();
  engine_->load(folder);
}

void EngineCourse::release(const Event& event) {
  engine_->finish_save();
  engine_->release();
  for (const auto& [name, parameter] : network_->parameters_once()) log_.see(name, parameter);
  engine_.reset();
  build(event.which % static_cast<int>(scenario_.plans.size()));
}

void EngineCourse::finish() {
  if (course_.in_step()) engine_->discard();
  see_parameters(0);
  for (const auto& [name, parameter] : network_->parameters_once())
    log_.see("main value of " + name, engine_->main_parameter(parameter));
  for (const auto& item : network_->named_buffers()) log_.see(item.key(), item.value(), Whose::turns);
  log_.see("steps", static_cast<double>(engine_->steps()));
  log_.see("skipped steps", static_cast<double>(engine_->skipped_steps()));
  log_.see("next loss scale", engine_->loss_scale());
}

}  // namespace zero::test::scenario
