// One backward.
#include <ATen/Functions.h>
#include <torch/csrc/autograd/autograd.h>

#include <memory>
#include <string>
#include <utility>

#include "backwards/autocast.h"
#include "backwards/program_backward.h"
#include "backwards/running_backward.h"
#include "engine/impl.h"
#include "persist/gathered.h"
#include "zero/error.h"

namespace zero {

void Engine::Impl::end(std::unique_ptr<Impl> engine) {
  if (!RunningBackward::concerns(*engine) && !engine->micro_batch_.in_backward()) return;
  RunningBackward* const running = RunningBackward::outermost();
  if (running == nullptr) return;
  engine->ended_ = true;
  running->keep(std::move(engine));
}

void Engine::Impl::require_not_ended() const {
  if (ended_)
    throw StateError(rank_text() + ": the engine ended within its own backward, in a hook of the program's",
                     "end it when the backward has ended");
}

void Engine::Impl::check_idle(const char* call) const {
  if (in_backward_)
    throw StateError(rank_text() + ": " + call + " within a backward of the engine, in a hook of the program's",
                     "call it when the backward has ended");
}

std::shared_ptr<RunningBackward> Engine::Impl::new_backward() {
  return std::make_shared<RunningBackward>(this, scaler_.value(), micro_batch_.drawn());
}

void Engine::Impl::backward(const std::shared_ptr<RunningBackward>& run, const at::Tensor& loss) {
  check_alive();
  check_idle("backward()");
  if (!loss.defined() || loss.numel() != 1)
    throw ConfigError(rank_text() + ": backward needs a loss of one element", "reduce it, by mean() for example");
  if (!loss.requires_grad())
    throw ConfigError(rank_text() + ": the loss does not depend on any trainable parameter",
                      "compute it from the module's output, with gradients enabled");
  check_parameters();
  run->foresee({loss});
  const RunningBackward::Guard running(run);
  const AutocastOff off(micro_batch_.cast());
  gradients_->require_planned(micro_);
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

// In fp16 itself most scales would be infinite; what then overflows is noticed as any other overflow.
at::Tensor Engine::Impl::wide(const at::Tensor& loss) {
  return loss.scalar_type() == at::kHalf ? loss.to(at::kFloat) : loss;
}

at::Tensor Engine::Impl::scale(const at::Tensor& loss) {
  check_alive();
  const at::Tensor scaled = wide(loss) * scaler_.value();
  if (scaled.requires_grad()) program_backward::note_scaled(scaled, scaler_.value());
  return scaled;
}

void Engine::Impl::begin_micro_batch() {
  in_backward_ = true;
  gradients_->begin(micro_);
  micro_batch_.begin_backward(micro_ + 1 < plan_.accumulate());
}

void Engine::Impl::end_gradients() {
  gradients_->end();
}

void Engine::Impl::end_micro_batch(const at::Tensor& loss) {
  in_backward_ = false;
  micro_batch_.end_backward();
  sums_.add_loss(slot(), loss);
  ++micro_;
  number_from(first_slot_);
}

void Engine::Impl::before_backward() {
  if (!gradients_) return;
  gradients_->renew_hooks();
  gradients_->require_none_of_program();
  heed_emptied();
  agree_on_emptied();
}

void Engine::Impl::after_backward() noexcept {
  if (gradients_) gradients_->show();
}

// The program's zero_grad() since. Not collective.
void Engine::Impl::heed_emptied() {
  if (RunningBackward::current() == nullptr) gradients_->require_none_of_program();
  const Gradients::Shown shown = gradients_->take_back();
  if (shown == Gradients::Shown::kept) return;
  if (stepped_ > 0)
    throw StateError(rank_text() + ": zero_grad() after backward number " + std::to_string(micro_) +
                         " of a step would also empty the gradients of those before it, of which step() was called",
                     "call zero_grad() before the backward, or drop the whole step by engine.discard()");
  if (shown == Gradients::Shown::all_emptied) return begin_anew();
  gradients_->empty_some();
  partly_emptied_ = true;
}

// Before what may only be done between steps, or sees whether it is. Collective.
void Engine::Impl::settle_emptied() {
  heed_emptied();
  agree_on_emptied();
  if (micro_ > 0) gradients_->show();
}

// Where the program has emptied some and no rank has any of the others, the step begins anew, as where all were.
void Engine::Impl::agree_on_emptied() {
  if (std::exchange(partly_emptied_, false) && !any_left()) begin_anew();
}

bool Engine::Impl::any_left() {
  bool left = gradients_->any_arrived();
  if (exchange_.size() == 1) return left;
  exchange_.run({.kind = Exchange::Kind::emptied,
                 .count = 1,
                 .run =
                     [&](const Groups& groups) {
                       for (const std::int64_t one : gather_numbers(groups.along(Axis::data), left ? 1 : 0))
                         left = left || one != 0;
                     },
                 .lane = Exchange::Lane::control});
  return left;
}

void Engine::Impl::begin_anew() {
  empty_step();
  number_from(given_slot_.value_or(0));
}

void Engine::Impl::empty_step() {
  gradients_->clear();
  sums_.clear();
  micro_ = 0;
  stepped_ = 0;
  partly_emptied_ = false;
}

// The first gradient from a backward that this engine did not begin has come.
void Engine::Impl::join_backward() {
  RunningBackward& run = *RunningBackward::current();
  check_alive();
  check_parameters();
  if (scaler_.value() != run.scale())
    throw StateError(rank_text() + ": a backward with loss scale " + std::to_string(run.scale()) +
                         " brings gradients to an engine whose loss scale is " + std::to_string(scaler_.value()),
                     run.of_program() ? "call engine.scale(loss).backward(), or engine.backward(loss)"
                                      : "give both engines the same Options::loss_scale, a fixed one");
  gradients_->require_planned(micro_);
  run.join(*this);
  begin_micro_batch();
}

void Engine::Impl::discard() {
  check_alive();
  check_idle("discard()");
  drop_step();
}

void Engine::Impl::drop_step() {
  in_backward_ = false;
  gradients_->abort();
  micro_batch_.abort();
  empty_step();
  number_from(0);
}

}  // namespace zero
