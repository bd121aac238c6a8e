#include "engine/accumulation.h"

#include <ATen/Functions.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <string>
#include <utility>

#include "backwards/autocast.h"
#include "backwards/program_backward.h"
#include "comm/gathered_texts.h"
#include "zero/error.h"

namespace zero {
namespace {

LossScaler scaler_of(const Plan& plan, const Options& options) {
  const bool narrow = plan.compute_dtype() == Dtype::f16 || plan.reduction() == Dtype::f16;
  const LossScale usual = narrow ? LossScale{} : LossScale::fixed(1);
  return LossScaler(options.loss_scale.value_or(usual));
}

StepSums sums_of(const Trained& trained, const Accounts& accounts) {
  const auto parameters = static_cast<std::int64_t>(trained.parameters());
  return {accounts.device(), accounts.where(), trained.plan().accumulate(),
          trained.plan().float8() ? 2 * parameters : 0};
}

c10::intrusive_ptr<Float8Linears> float8_linears(const Trained& trained, Device& device, const StepSums& sums) {
  if (!trained.plan().float8()) return {};
  const Float8& recipe = trained.options().float8;
  if (!recipe.takes || recipe.history < 1)
    throw ConfigError("float8 needs a function `takes` and a history of 1 step or more");
  std::vector<char> taken(trained.parameters());
  for (const UnitLayout& unit : trained.layout().units())
    for (const Slot& slot : unit.slots()) {
      const auto i = static_cast<std::size_t>(slot.index);
      const ParameterInfo& info = trained.infos()[i];
      if (!recipe.takes(info) || unit.dtype() != Dtype::bf16) continue;
      if (info.shape.size() != 2)
        throw ConfigError("float8 takes parameter '" + info.name + "', which is not a matrix");
      taken[i] = 1;
    }
  if (std::ranges::none_of(taken, [](char each) { return each != 0; }))
    throw ConfigError("float8 takes no parameter of the model", "choose them by Options::float8.takes, or use bf16");
  return c10::make_intrusive<Float8Linears>(recipe, std::move(taken), device, sums.magnitudes());
}

// In fp16 itself most scales would be infinite; what then overflows is noticed as any other overflow.
at::Tensor wide(const at::Tensor& loss) {
  return loss.scalar_type() == at::kHalf ? loss.to(at::kFloat) : loss;
}

// What is told of state has them.
void outdate_errors(const Plan& plan, Parameters& parameters) {
  if (plan.error_feedback()) parameters.invalidate_state();
}

}  // namespace

Accumulation::Accumulation(const Trained& trained, EngineRanks& ranks, const Liveness& life, Parameters& parameters)
    : trained_(trained),
      ranks_(ranks),
      life_(life),
      parameters_(parameters),
      sums_(sums_of(trained, ranks.accounts())),
      float8_(float8_linears(trained, ranks.device(), sums_)),
      scaler_(scaler_of(trained.plan(), trained.options())),
      numbers_(trained.resolved(), ranks.size(), ranks.rank(), parameters.micro_batch(), [this] { return emptied(); }),
      gradients_(std::make_unique<Gradients>(parameters.units(), ranks.exchange(), trained.resolved(), trained.routes(),
                                             ranks.accounts(), parameters.gradient_stores())),
      hears_(std::in_place, *this) {
  if (float8_) float8_->set_loss_scale(scaler_.value());
  gradients_->on_arrival_from_outside(*this, joins_others(),
                                      [this] { naming_rank(ranks_.rank_of_all(), [this] { join_backward(); }); });
  numbers_.drop();
  if (DelayedUpdate* const delayed = parameters.delayed())
    gradients_->before_change([delayed](int unit) { delayed->wait_for_gradient(unit); });
}

void Accumulation::require_not_ended() const {
  if (ended_)
    throw StateError("rank " + std::to_string(ranks_.rank()) +
                         ": the engine ended within its own backward, in a hook of the program's",
                     "end it when the backward has ended");
}

void Accumulation::require_idle(const char* call) const {
  if (in_backward_)
    throw StateError(std::string(call) + " within a backward of the engine, in a hook of the program's",
                     "call it when the backward has ended");
}

void Accumulation::require_no_gradients(const char* call) const {
  if (micro() == 0) return;
  throw StateError(std::string(call) + " in the middle of a step: the gradients of " + std::to_string(micro()) +
                       " of its " + std::to_string(trained_.plan().accumulate()) + " micro-batches are held",
                   "call step() once all are there, or discard() to drop them");
}

std::shared_ptr<RunningBackward> Accumulation::new_backward() {
  return std::make_shared<RunningBackward>(this, scaler_.value(), &parameters_.micro_batch());
}

void Accumulation::backward(const std::shared_ptr<RunningBackward>& run, const at::Tensor& loss) {
  if (!loss.defined() || loss.numel() != 1)
    throw ConfigError("backward needs a loss of one element", "reduce it, by mean() for example");
  if (!loss.requires_grad())
    throw ConfigError("the loss does not depend on any trainable parameter",
                      "compute it from the module's output, with gradients enabled");
  run->foresee({loss});
  const RunningBackward::Guard running(run);
  const AutocastOff off(parameters_.micro_batch().cast());
  gradients_->require_planned(micro());
  try {
    const at::Tensor root = wide(loss);
    const at::Tensor seed = at::full_like(root, scaler_.value());
    begin_micro_batch();
    torch::autograd::backward({root}, {seed});
    run->finish(loss);
  } catch (...) {
    run->drop();
    throw;
  }
}

at::Tensor Accumulation::scale(const at::Tensor& loss) const {
  const at::Tensor scaled = wide(loss) * scaler_.value();
  if (scaled.requires_grad()) program_backward::note_scaled(scaled, scaler_.value());
  return scaled;
}

void Accumulation::begin_micro_batch() {
  in_backward_ = true;
  outdate_errors(trained_.plan(), parameters_);
  gradients_->begin(micro());
  parameters_.micro_batch().begin_backward(micro() + 1 < trained_.plan().accumulate());
}

// The first gradient from a backward that this engine did not begin has come.
void Accumulation::join_backward() {
  RunningBackward& run = *RunningBackward::current();
  life_.require();
  parameters_.require_unchanged();
  if (scaler_.value() != run.scale())
    throw StateError("a backward with loss scale " + std::to_string(run.scale()) +
                         " brings gradients to an engine whose loss scale is " + std::to_string(scaler_.value()),
                     run.of_program() ? "call engine.scale(loss).backward(), or engine.backward(loss)"
                                      : "give both engines the same Options::loss_scale, a fixed one");
  gradients_->require_planned(micro());
  run.join(*this);
  begin_micro_batch();
}

void Accumulation::end_micro_batch(const at::Tensor& loss) {
  in_backward_ = false;
  parameters_.micro_batch().end_backward();
  sums_.add_loss(numbers_.slot(), loss);
  numbers_.count();
}

void Accumulation::before_backward() {
  if (!gradients_) return;
  naming_rank(ranks_.rank_of_all(), [this] {
    gradients_->renew_hooks();
    gradients_->require_none_of_program();
    apply_zero_grad();
    agree_on_emptied();
  });
}

void Accumulation::after_backward() noexcept {
  if (gradients_) gradients_->show_placeholders();
}

void Accumulation::drop_step() {
  in_backward_ = false;
  outdate_errors(trained_.plan(), parameters_);
  gradients_->abort();
  parameters_.micro_batch().abort();
  empty_step();
  numbers_.drop();
}

void Accumulation::drop_arrived() {
  if (gradients_ && !in_backward_) gradients_->drop_arrived();
}

// Not collective.
void Accumulation::apply_zero_grad() {
  if (RunningBackward::current() == nullptr) gradients_->require_none_of_program();
  const Gradients::Shown shown = gradients_->collect_placeholders();
  if (shown == Gradients::Shown::kept) return;
  if (stepped_ > 0)
    throw StateError("zero_grad() after backward number " + std::to_string(micro()) +
                         " of a step would also empty the gradients of those before it, of which step() was called",
                     "call zero_grad() before the backward, or drop the whole step by engine.discard()");
  if (shown == Gradients::Shown::all_emptied) return begin_anew();
  gradients_->empty_some();
  partly_emptied_ = true;
}

void Accumulation::settle_emptied() {
  apply_zero_grad();
  agree_on_emptied();
  if (micro() > 0) gradients_->show_placeholders();
}

// Where the program has emptied some and no rank has any of the others, the step begins anew, as where all were.
void Accumulation::agree_on_emptied() {
  if (std::exchange(partly_emptied_, false) && !any_left()) begin_anew();
}

bool Accumulation::any_left() {
  bool left = gradients_->any_arrived();
  if (ranks_.size() == 1) return left;
  ranks_.exchange().confer(Exchange::Kind::emptied, [&left](const Communicator& all) {
    for (const std::int64_t one : gather_numbers(all, left ? 1 : 0)) left = left || one != 0;
  });
  return left;
}

void Accumulation::begin_anew() {
  outdate_errors(trained_.plan(), parameters_);
  gradients_->coded().begin_anew();
  empty_step();
  numbers_.begin_anew();
}

void Accumulation::empty_step() {
  gradients_->clear();
  sums_.clear();
  stepped_ = 0;
  partly_emptied_ = false;
}

MicroBatchNumbers::Emptied Accumulation::emptied() const {
  return in_backward_ || !gradients_ ? MicroBatchNumbers::Emptied() : gradients_->emptied();
}

double Accumulation::held_times() const {
  return (trained_.resolved().holds_mean() ? 1.0 : ranks_.size()) * trained_.plan().accumulate() * scaler_.value();
}

void Accumulation::next_step() {
  empty_step();
  parameters_.micro_batch().next_step();
  numbers_.next_step();
}

void Accumulation::resume(const StateScalars& scalars) {
  if (const auto& scaler = scalars.loss_scaler; scaler && scaler_.dynamic())
    scaler_.resume(scaler->value, scaler->clean_steps, static_cast<int>(scaler->overflows_left));
  if (float8_) {
    for (std::size_t i = 0; i < trained_.parameters(); ++i)
      if (const auto found = scalars.float8.find(trained_.infos()[i].name); found != scalars.float8.end())
        float8_->resume(static_cast<int>(i), found->second);
    float8_->set_loss_scale(scaler_.value());
  }
  sums_.clear();
  numbers_.next_step(scalars.micro_batches);
}

}  // namespace zero
