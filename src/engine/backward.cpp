// One backward.
#include <ATen/Functions.h>
#include <torch/csrc/autograd/autograd.h>

#include <memory>
#include <string>

#include "engine/impl.h"
#include "state/program_backward.h"
#include "state/running_backward.h"
#include "zero/error.h"

namespace zero {

void Engine::Impl::backward(const at::Tensor& loss) {
  check_alive();
  if (!loss.defined() || loss.numel() != 1)
    throw ConfigError(rank_text() + ": backward needs a loss of one element", "reduce it, by mean() for example");
  if (!loss.requires_grad())
    throw ConfigError(rank_text() + ": the loss does not depend on any trainable parameter",
                      "compute it from the module's output, with gradients enabled");
  check_parameters();
  const auto run = std::make_shared<RunningBackward>(this, scaler_.value(), micro_batch_.drawn());
  const RunningBackward::Guard running(run);
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
  gradients_->begin(micro_);
  micro_batch_.begin_backward(micro_ + 1 < plan_.accumulate());
}

void Engine::Impl::end_gradients() {
  gradients_->end();
}

void Engine::Impl::end_micro_batch(const at::Tensor& loss) {
  micro_batch_.end_backward();
  sums_.add_loss(micro_, loss);
  ++micro_;
  micro_batch_.next(micro_batch_number());
}

void Engine::Impl::before_backward() {
  if (gradients_) heed_emptied();
}

void Engine::Impl::after_backward() noexcept {
  if (gradients_) gradients_->show();
}

// The program's zero_grad() since.
void Engine::Impl::heed_emptied() {
  if (gradients_->take_back() == Gradients::Shown::kept) return;
  if (stepped_ > 0)
    throw StateError(rank_text() + ": zero_grad() after backward number " + std::to_string(micro_) +
                         " of a step would also empty the gradients of those before it, of which step() was called",
                     "call zero_grad() before the backward, or drop the whole step by engine.discard()");
  empty_step();
  micro_batch_.next(micro_batch_number());
}

void Engine::Impl::empty_step() {
  gradients_->clear();
  sums_.clear();
  micro_ = 0;
  stepped_ = 0;
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
  drop_step();
}

void Engine::Impl::drop_step() {
  gradients_->abort();
  micro_batch_.abort();
  empty_step();
  micro_batch_.next(micro_batch_number());
}

}  // namespace zero
