#include "engine/impl.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "engine/agreement.h"
#include "state/window.h"
#include "tier/arena_allocator.h"
#include "zero/error.h"

namespace zero {
namespace {

const Plan& validated(const Plan& plan, int ranks) {
  plan.validate(ranks);
  return plan;
}

// A group of the engine's own, so that its prefetches never mix with the program's collectives.
Communicator own_group(const World& world) {
  return world.size() == 1 ? world.communicator() : world.communicator().split(0, world.rank());
}

std::vector<std::unique_ptr<Unit>> make_units(const Layout& layout, const Inventory& inventory, const Plan& plan,
                                              int rank, Accounts& accounts) {
  std::vector<std::unique_ptr<Unit>> units;
  for (const UnitLayout& unit : layout.units()) {
    std::vector<at::Tensor> parameters;
    for (const Slot& slot : unit.slots())
      parameters.push_back(inventory.parameters[static_cast<std::size_t>(slot.index)]);
    units.push_back(std::make_unique<Unit>(unit, static_cast<int>(units.size()), rank, plan, parameters, accounts));
  }
  return units;
}

}  // namespace

Engine::Impl::Impl(torch::nn::Module& module, const World& world, const Plan& plan, const Optimizer& optimizer,
                   Options options)
    : Impl(take_inventory(module, validated(plan, world.size())), world, plan, optimizer, std::move(options)) {}

Engine::Impl::Impl(Inventory inventory, const World& world, const Plan& plan, const Optimizer& optimizer,
                   Options options)
    : plan_(plan),
      resolved_(plan.on(world.size())),
      options_(std::move(options)),
      infos_(std::move(inventory.infos)),
      layout_(inventory.specs, world.size()),
      moments_(moments(optimizer)),
      meter_(std::make_shared<TrafficMeter>()),
      setup_meter_(std::make_shared<TrafficMeter>()),
      group_(own_group(world)),
      accounts_(group_),
      units_(make_units(layout_, inventory, resolved_, world.rank(), accounts_)),
      exchange_(
          Communicator(metered(group_.impl(), meter_)), Communicator(metered(group_.impl(), setup_meter_)),
          [this](const Communicator& communicator, int unit) {
            units_[static_cast<std::size_t>(unit)]->serve(communicator);
          },
          [this](int unit) { return layout_.units()[static_cast<std::size_t>(unit)].name(); }),
      updater_(layout_, resolved_, optimizer, options_, infos_, accounts_) {
  if (!(options_.clip >= 0)) throw ConfigError("clip must be a number that is not negative");
  agree(inventory);
  adopt_units(inventory.replicated);
  pager_ = std::make_unique<Pager>(
      units_, exchange_, residency(resolved_, layout_), accounts_,
      Pager::Settings{.autocast = plan_.precision() == Precision::bf16, .seed = options_.seed, .meter = meter_});
  renew(Exchange::Kind::setup);
  gradients_ = std::make_unique<Gradients>(units_, exchange_, resolved_, accounts_);
  pager_->next_micro_batch(micro_batch());
  reserve_room();
  accounts_.reset_peaks();
  trim_arena();
  window::watch();
}

// A host without room for gradients is to say so before training starts. What is taken and given back stays
// reserved.
void Engine::Impl::reserve_room() const {
  const Estimate needed = estimate();
  const bool partial = resolved_[State::gradient].between == Placement::partial;
  static_cast<void>(accounts_.own_memory(partial ? needed.state.gradient : needed.reduction));
}

Engine::Impl::~Impl() {
  if (!released_) window::unwatch();
  try {
    for (auto& unit : units_) pager_->settle_published(*unit);
  } catch (...) {
    // The peers are gone: the units on their way end empty. A destructor has nobody to tell.
  }
  pager_->close_window();
}

void Engine::Impl::agree(const Inventory& inventory) const {
  std::vector<std::int64_t> buffers;
  for (const at::Tensor& buffer : inventory.replicated) buffers.push_back(static_cast<std::int64_t>(buffer.nbytes()));
  require_agreement(Communicator(metered(group_.impl(), setup_meter_)),
                    description(plan_, inventory.specs, infos_, buffers));
}

// Rank 0's values win.
void Engine::Impl::broadcast(const at::Tensor& values, int unit) {
  const View view{values.mutable_data_ptr(), static_cast<std::int64_t>(values.nbytes()), Dtype::u8};
  exchange_.run({Exchange::Kind::setup, unit, view.count, [view](const Communicator& communicator) {
                   if (view.count > 0) communicator.broadcast(view, 0).wait();
                 }});
}

void Engine::Impl::adopt_units(const std::vector<at::Tensor>& replicated) {
  const window::Blind blind;
  at::NoGradGuard no_grad;
  for (auto& unit : units_) {
    unit->host = this;
    if (unit->layout().length() == 0) continue;
    for (const at::Tensor& parameter : unit->parameters()) parameter.mutable_grad().reset();
    Buffer values = unit->flatten();
    broadcast(values.tensor(), unit->index());
    if (unit->layout().trainable()) updater_.prepare(*unit, values.tensor());
    unit->adopt(std::move(values));
  }
  for (const at::Tensor& buffer : replicated) {
    at::Tensor whole = buffer.contiguous();
    broadcast(whole, -1);
    if (!whole.is_same(buffer)) buffer.detach().copy_(whole);
  }
}

void Engine::Impl::check_alive() const {
  if (released_) throw StateError("the engine has ended by release()", "build a new engine to train on");
}

void Engine::Impl::check_parameters() const {
  for (const auto& unit : units_) {
    if (!unit->adopted()) continue;
    for (std::size_t slot = 0; slot < unit->parameters().size(); ++slot)
      if (const std::string fault = unit->fault(static_cast<int>(slot)); !fault.empty())
        throw StateError(rank_text() + ": " + fault, "change parameters in place, inside zero::gather");
  }
}

void Engine::Impl::check_not_gathered(const char* call) const {
  for (const auto& unit : units_)
    if (pager_->pinned(*unit))
      throw StateError(rank_text() + ": " + call + " inside a zero::gather of unit '" + unit->layout().name() + "'",
                       "end the scope first");
}

void Engine::Impl::backward(const at::Tensor& loss) {
  check_alive();
  if (!loss.defined() || loss.numel() != 1)
    throw ConfigError(rank_text() + ": backward needs a loss of one element", "reduce it, by mean() for example");
  if (!loss.requires_grad())
    throw ConfigError(rank_text() + ": the loss does not depend on any trainable parameter",
                      "compute it from the module's output, with gradients enabled");
  check_parameters();
  gradients_->begin(micro_);
  pager_->begin_backward(micro_ + 1 < plan_.accumulate());
  try {
    torch::autograd::backward({loss}, {});
    gradients_->end();
  } catch (...) {
    discard();
    throw;
  }
  pager_->end_backward();
  losses_.resize(static_cast<std::size_t>(plan_.accumulate()));
  losses_[static_cast<std::size_t>(micro_ % plan_.accumulate())] += loss.item<double>();
  ++micro_;
  pager_->next_micro_batch(micro_batch());
}

void Engine::Impl::discard() {
  check_alive();
  gradients_->abort();
  pager_->abort();
  losses_.clear();
  micro_ = 0;
  pager_->next_micro_batch(micro_batch());
}

std::int64_t Engine::Impl::micro_batch() const {
  return window_ * plan_.accumulate() * exchange_.size() +
         micro_batch_index(resolved_, exchange_.size(), exchange_.rank(), micro_);
}

Ballot Engine::Impl::ballot() const {
  Ballot ballot;
  ballot.losses = losses_;
  ballot.present.assign(infos_.size(), 0);
  // From the end, so that what the update needs first was read last.
  for (auto at = units_.rbegin(); at != units_.rend(); ++at) {
    const auto& unit = *at;
    const UnitLayout& layout = unit->layout();
    void* data = gradients_->data(unit->index());
    if (data == nullptr) continue;
    for (std::size_t slot = 0; slot < layout.slots().size(); ++slot)
      ballot.present[static_cast<std::size_t>(layout.slots()[slot].index)] =
          gradients_->arrived(unit->index(), static_cast<int>(slot));
    const auto begin = unit->shard_begin() - gradients_->origin(unit->index());
    const auto count = static_cast<std::size_t>(layout.shard_length());
    if (accumulation(layout.dtype()) == Dtype::f64) {
      sum_of_squares(std::span(static_cast<const double*>(data) + begin, count), ballot.squares, ballot.nonfinite);
    } else {
      sum_of_squares(std::span(static_cast<const float*>(data) + begin, count), ballot.squares, ballot.nonfinite);
    }
  }
  return ballot;
}

Verdict Engine::Impl::vote() {
  Ballot mine = ballot();
  const std::vector<std::int64_t> words = pack(mine, plan_);
  if (exchange_.size() == 1) return count(words, resolved_, 1, infos_.size());
  std::vector<std::int64_t> table(words.size() * static_cast<std::size_t>(exchange_.size()));
  const auto count_of = [](const auto& v) { return static_cast<std::int64_t>(v.size()); };
  exchange_.run({Exchange::Kind::vote, -1, count_of(words), [&](const Communicator& communicator) {
                   communicator
                       .all_gather({words.data(), count_of(words), Dtype::i64},
                                   {table.data(), count_of(table), Dtype::i64})
                       .wait();
                 }});
  return count(table, resolved_, exchange_.size(), infos_.size());
}

// The mean and clipping, as one factor (torch::nn::utils::clip_grad_norm_'s rule).
double Engine::Impl::scale_of(const Verdict& verdict) const {
  const double mean = 1.0 / (static_cast<double>(exchange_.size()) * plan_.accumulate());
  if (options_.clip <= 0) return mean;
  return mean * std::min(1.0, options_.clip / (verdict.norm * mean + 1e-6));
}

StepReport Engine::Impl::step() {
  check_alive();
  StepReport report;
  report.step = steps_;
  if (micro_ < plan_.accumulate()) return report;
  check_not_gathered("step()");
  check_parameters();
  pager_->close_window();
  const Verdict verdict = vote();
  const double micro_batches = static_cast<double>(exchange_.size()) * plan_.accumulate();
  const double lr_factor = options_.schedule ? options_.schedule(steps_) : 1.0;
  report.skipped = verdict.overflow;
  report.applied = !verdict.overflow;
  report.loss = verdict.loss / micro_batches;
  report.grad_norm = verdict.norm / micro_batches;
  report.lr = updater_.learning_rate(lr_factor);
  if (report.skipped) {
    report.grad_norm = std::numeric_limits<double>::infinity();
    ++skipped_;
  } else {
    update(verdict, lr_factor);
    report.step = ++steps_;
  }
  start_window();
  return report;
}

void Engine::Impl::update(const Verdict& verdict, double lr_factor) {
  pager_->forget();
  const double scale = scale_of(verdict);
  for (auto& unit : units_) {
    if (gradients_->data(unit->index()) == nullptr) continue;
    pager_->settle_published(*unit);
    if (!updater_.prepared(*unit)) updater_.prepare_late(*unit);
    updater_.step(*unit, *gradients_, verdict.present, scale, lr_factor);
    for (const at::Tensor& parameter : unit->parameters()) parameter.unsafeGetTensorImpl()->bump_version();
    publish(*unit);
  }
  renew(Exchange::Kind::publish);
}

bool Engine::Impl::common() const {
  return std::any_of(units_.begin(), units_.end(), [](const auto& unit) { return unit->common(); });
}

// This rank has written its part of the common units.
void Engine::Impl::renew(Exchange::Kind kind) {
  if (common()) pager_->renew(exchange_.submit({kind, -1, 0, [](const Communicator& c) { c.barrier().wait(); }}));
}

// Replicated parameters of which each rank updated its slice.
void Engine::Impl::publish(Unit& unit) {
  const bool gathered = resolved_[State::parameter].placement == Placement::replicated &&
                        resolved_[State::optimizer].placement == Placement::sharded;
  if (!gathered || exchange_.size() == 1) return;
  const View shard = unit.shard();
  const View whole = unit.whole();
  unit.suspend();
  pager_->expect(unit, exchange_.submit({Exchange::Kind::publish, unit.index(), whole.count,
                                         [shard, whole](const Communicator& communicator) {
                                           communicator.all_gather(shard, whole).wait();
                                         }}));
}

void Engine::Impl::start_window() {
  gradients_->clear();
  losses_.clear();
  micro_ = 0;
  ++window_;
  pager_->next_micro_batch(micro_batch());
}

void Engine::Impl::hold(Unit& unit, std::optional<int> from_rank) {
  check_alive();
  if (from_rank && (*from_rank < 0 || *from_rank >= exchange_.size()))
    throw ConfigError("zero::gather: there is no rank " + std::to_string(*from_rank) + " among " +
                      std::to_string(exchange_.size()));
  pager_->pin(unit);
}

void Engine::Impl::let_go(Unit& unit) {
  pager_->unpin(unit);
}

void Engine::Impl::drop(Unit& unit, const Buffer& before) {
  if (before) std::memcpy(unit.whole().data, before.data(), static_cast<std::size_t>(unit.layout().bytes()));
  let_go(unit);
  if (!before && !pager_->pinned(unit)) pager_->discard(unit);
}

void Engine::Impl::keep(Unit& unit, std::optional<int> from_rank) {
  if (from_rank) {
    const View whole = unit.whole();
    exchange_.run({Exchange::Kind::read, unit.index(), whole.count,
                   [whole, root = *from_rank](const Communicator& c) { c.broadcast(whole, root).wait(); }});
  }
  meet(unit);
  unit.keep_whole();
  updater_.adopt(unit);
  meet(unit);
}

// Before a common unit is written every rank has its copy, and every rank has written before it is read.
void Engine::Impl::meet(const Unit& unit) {
  if (!unit.common()) return;
  exchange_.run({Exchange::Kind::read, unit.index(), 0, [](const Communicator& c) { c.barrier().wait(); }});
}

void Engine::Impl::release() {
  check_alive();
  check_not_gathered("release()");
  for (auto& unit : units_)
    if (unit->adopted()) pager_->pin(*unit);
  gradients_.reset();
  pager_->close_window();
  for (auto& unit : units_)
    if (unit->adopted()) unit->abandon();
  window::unwatch();
  released_ = true;
}

at::Tensor Engine::Impl::main_parameter(const at::Tensor& parameter) {
  check_alive();
  Unit* unit = Unit::of(parameter.unsafeGetTensorImpl());
  if (unit == nullptr || unit->host != this)
    throw ConfigError("main_parameter was given a tensor that is not a parameter of this engine");
  const window::Blind blind;
  at::NoGradGuard no_grad;
  const Buffer* main = updater_.main(*unit);
  at::Tensor flat;
  if (main == nullptr) {
    pager_->pin(*unit);
    flat =
        parameter.detach().to(scalar_type(accumulation(unit->layout().dtype())), /*non_blocking=*/false, /*copy=*/true);
    pager_->unpin(*unit);
    return flat;
  }
  flat = at::empty({unit->layout().length()}, main->tensor().options());
  const View whole{flat.mutable_data_ptr(), flat.numel(), accumulation(unit->layout().dtype())};
  const View mine{main->data(), main->count(), whole.dtype};
  if (mine.count == whole.count) {
    flat.copy_(main->tensor());
  } else {
    exchange_.run({Exchange::Kind::read, unit->index(), whole.count,
                   [mine, whole](const Communicator& c) { c.all_gather(mine, whole).wait(); }});
  }
  return flat.as_strided(parameter.sizes(), parameter.strides(), parameter.storage_offset()).clone();
}

TrafficMeter& Engine::Impl::meter() {
  for (auto& unit : units_) pager_->settle_published(*unit);
  pager_->settle_renewed();
  return *meter_;
}

Estimate Engine::Impl::estimate() const {
  return zero::estimate(plan_, layout_, moments_, trace().value_or(Trace::sequential(layout_)), memory());
}

}  // namespace zero
