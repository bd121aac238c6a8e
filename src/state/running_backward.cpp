#include "state/running_backward.h"

#include "base/of_thread.h"

namespace zero {

struct Listeners {
  std::mutex mutex;
  std::vector<TakesGradients*> engines;
};

bool RunningBackward::heard() {
  Listeners* const here = OfThread<Listeners>::here();
  if (here == nullptr) return false;
  const std::lock_guard lock(here->mutex);
  return !here->engines.empty();
}

// Where one refuses, those before it are as they were.
void RunningBackward::Guard::before() {
  Listeners* const here = OfThread<Listeners>::here();
  if (here == nullptr) return;
  const std::lock_guard lock(here->mutex);
  std::size_t ready = 0;
  try {
    for (; ready < here->engines.size(); ++ready) here->engines[ready]->before_backward();
  } catch (...) {
    for (std::size_t i = 0; i < ready; ++i) here->engines[i]->after_backward();
    throw;
  }
}

void RunningBackward::Guard::after() noexcept {
  Listeners* const here = OfThread<Listeners>::here();
  if (here == nullptr) return;
  const std::lock_guard lock(here->mutex);
  for (TakesGradients* const engine : here->engines) engine->after_backward();
}

HearsOfBackwards::HearsOfBackwards(TakesGradients& engine) : engine_(engine), listeners_(OfThread<Listeners>::own()) {
  const std::lock_guard lock(listeners_->mutex);
  listeners_->engines.push_back(&engine);
}

HearsOfBackwards::~HearsOfBackwards() {
  const std::lock_guard lock(listeners_->mutex);
  std::erase(listeners_->engines, &engine_);
}

}  // namespace zero
