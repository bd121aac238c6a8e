// One backward.
#include <ATen/Functions.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <vector>

#include "engine/impl.h"
#include "state/running_backward.h"
#include "zero/error.h"

namespace zero {

// A backward of this engine, and of those to whose parameters its gradients go too.
struct Engine::Impl::Backward final : RunningBackward {
  explicit Backward(Impl& engine) : leader(engine) {}

  Impl& leader;
  std::mutex mutex = {};           // devices have a thread each
  std::vector<Impl*> joined = {};  // others, in the order in which gradients reached them
};

void Engine::Impl::backward(const at::Tensor& loss) {
  check_alive();
  if (!loss.defined() || loss.numel() != 1)
    throw ConfigError(rank_text() + ": backward needs a loss of one element", "reduce it, by mean() for example");
  if (!loss.requires_grad())
    throw ConfigError(rank_text() + ": the loss does not depend on any trainable parameter",
                      "compute it from the module's output, with gradients enabled");
  check_parameters();
  gradients_->require_planned(micro_);
  const auto run = std::make_shared<Backward>(*this);
  const RunningBackward::Guard running(run);
  try {
    // In fp16 itself most scales would be infinite; what then overflows is noticed as any other overflow.
    const at::Tensor root = loss.scalar_type() == at::kHalf ? loss.to(at::kFloat) : loss;
    const at::Tensor seed = at::full_like(root, scaler_.value());
    begin_micro_batch();
    torch::autograd::backward({root}, {seed});
    gradients_->end();
    for (Impl* other : run->joined) other->gradients_->end();
    for (Impl* other : run->joined) other->end_micro_batch(loss);
    end_micro_batch(loss);
  } catch (...) {
    for (Impl* other : run->joined) other->drop_step();
    drop_step();
    throw;
  }
}

void Engine::Impl::begin_micro_batch() {
  gradients_->begin(micro_);
  micro_batch_.begin_backward(micro_ + 1 < plan_.accumulate());
}

void Engine::Impl::end_micro_batch(const at::Tensor& loss) {
  micro_batch_.end_backward();
  sums_.add_loss(micro_, loss);
  ++micro_;
  micro_batch_.next(micro_batch_number());
}

// The first gradient from another engine's backward has come.
void Engine::Impl::join_backward() {
  auto* const run = static_cast<Backward*>(RunningBackward::current());
  check_alive();
  check_parameters();
  if (scaler_.value() != run->leader.scaler_.value())
    throw StateError(rank_text() + ": a backward with loss scale " + std::to_string(run->leader.scaler_.value()) +
                         " brings gradients to an engine whose loss scale is " + std::to_string(scaler_.value()),
                     "give both engines the same Options::loss_scale, a fixed one");
  gradients_->require_planned(micro_);
  {
    const std::lock_guard lock(run->mutex);
    run->joined.push_back(this);
  }
  begin_micro_batch();
}

void Engine::Impl::discard() {
  check_alive();
  drop_step();
}

void Engine::Impl::drop_step() {
  gradients_->abort();
  micro_batch_.abort();
  sums_.clear();
  micro_ = 0;
  micro_batch_.next(micro_batch_number());
}

}  // namespace zero
