#include "backwards/running_backward.h"

#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <iterator>

#include "backwards/micro_batch.h"
#include "backwards/paged_activations.h"
#include "backwards/random_numbers.h"
#include "base/lifetimes.h"

namespace zero {
namespace {

// Those that were built last first, and at the end those that do not hear of this thread's backwards.
std::vector<TakesGradients*> in_turn(const std::vector<TakesGradients*>& parts) {
  std::vector<TakesGradients*> turn;
  with_engines_here([&](const std::vector<TakesGradients*>& engines) {
    std::copy_if(engines.rbegin(), engines.rend(), std::back_inserter(turn),
                 [&](TakesGradients* engine) { return std::ranges::find(parts, engine) != parts.end(); });
  });
  std::ranges::copy_if(parts, std::back_inserter(turn),
                       [&](TakesGradients* part) { return std::ranges::find(turn, part) == turn.end(); });
  return turn;
}

// How many scopes of autocast the program is in on this thread, on or off.
int autocast_nesting() {
  at::autocast::increment_nesting();
  return at::autocast::decrement_nesting();
}

}  // namespace

RunningBackward* RunningBackward::outermost() {
  RunningBackward* running = current();
  while (running != nullptr && running->around_ != nullptr) running = running->around_;
  return running;
}

RunningBackward::RunningBackward(TakesGradients* leader, double scale, MicroBatch* forward, bool creates_graph)
    : of_program_(leader == nullptr),
      creates_graph_(creates_graph),
      drawn_(forward != nullptr && forward->drawn()),
      forward_(forward),
      nesting_(autocast_nesting()),
      numbers_(ThreadShared<RandomNumbers>::own()),
      activations_(ThreadShared<ActivationsHere>::own()),
      scale_(scale),
      around_(current()) {
  if (leader != nullptr) parts_.push_back(leader);
}

// Threads of devices begin it in no scope.
bool RunningBackward::recomputes() const {
  const int around = std::this_thread::get_id() == thread_ ? nesting_ : 0;
  return autocast_nesting() > around || (at::GradMode::is_enabled() && !creates_graph_);
}

void RunningBackward::forget(const MicroBatch& engines) {
  for (RunningBackward* each = current(); each != nullptr; each = each->around_)
    if (each->forward_ == &engines) each->forward_ = nullptr;
}

bool RunningBackward::heard() {
  bool any = false;
  with_engines_here([&](const auto& engines) { any = !engines.empty(); });
  return any;
}

bool RunningBackward::concerns(const TakesGradients& engine) {
  const auto among = [&](const std::vector<TakesGradients*>& engines) {
    return std::ranges::find(engines, &engine) != engines.end();
  };
  for (RunningBackward* each = current(); each != nullptr; each = each->around_) {
    const std::lock_guard lock(each->mutex_);
    if (among(each->parts_) || (each->foreseen_ && among(*each->foreseen_))) return true;
  }
  return false;
}

bool RunningBackward::may_wait(const TakesGradients& engine) const {
  if (!foreseen_) return true;
  for (const TakesGradients* const each : *foreseen_) {
    if (each == &engine) return true;
    if (!each->launched()) return false;
  }
  return false;
}

void RunningBackward::finish(const at::Tensor& loss) {
  const std::vector<TakesGradients*> parts = in_turn(parts_);
  for (const TakesGradients* const part : parts) part->require_not_ended();
  for (TakesGradients* const part : parts) part->end_gradients();
  for (TakesGradients* const part : parts) part->end_micro_batch(loss);
}

void RunningBackward::drop() {
  for (TakesGradients* const part : parts_) part->drop_step();
  with_engines_here([this](const auto& engines) {
    for (TakesGradients* const engine : engines)
      if (std::ranges::find(parts_, engine) == parts_.end()) engine->drop_arrived();
  });
}

// Where one refuses, those before it are as they were.
void RunningBackward::Guard::before() {
  with_engines_here([](const auto& engines) {
    std::size_t ready = 0;
    try {
      for (; ready < engines.size(); ++ready) engines[ready]->before_backward();
    } catch (...) {
      for (std::size_t i = 0; i < ready; ++i) engines[i]->after_backward();
      throw;
    }
  });
}

void RunningBackward::Guard::after() noexcept {
  with_engines_here([](const auto& engines) {
    for (TakesGradients* const engine : engines) engine->after_backward();
  });
}

HearsOfBackwards::HearsOfBackwards(TakesGradients& engine) : engine_(engine), here_(ThreadShared<EnginesHere>::own()) {
  const std::lock_guard lock(here_->mutex);
  here_->engines.push_back(&engine);
}

HearsOfBackwards::~HearsOfBackwards() {
  const std::lock_guard lock(here_->mutex);
  std::erase(here_->engines, &engine_);
}

}  // namespace zero
