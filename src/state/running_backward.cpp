#include "state/running_backward.h"

#include "base/of_thread.h"

namespace zero {

struct EnginesHere {
  std::mutex mutex;
  std::vector<TakesGradients*> engines;
};

bool RunningBackward::heard() {
  EnginesHere* const here = OfThread<EnginesHere>::here();
  if (here == nullptr) return false;
  const std::lock_guard lock(here->mutex);
  return !here->engines.empty();
}

// Where one refuses, those before it are as they were.
void RunningBackward::Guard::before() {
  EnginesHere* const here = OfThread<EnginesHere>::here();
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
  EnginesHere* const here = OfThread<EnginesHere>::here();
  if (here == nullptr) return;
  const std::lock_guard lock(here->mutex);
  for (TakesGradients* const engine : here->engines) engine->after_backward();
}

HearsOfBackwards::HearsOfBackwards(TakesGradients& engine) : engine_(engine), here_(OfThread<EnginesHere>::own()) {
  const std::lock_guard lock(here_->mutex);
  here_->engines.push_back(&engine);
}

HearsOfBackwards::~HearsOfBackwards() {
  const std::lock_guard lock(here_->mutex);
  std::erase(here_->engines, &engine_);
}

}  // namespace zero
