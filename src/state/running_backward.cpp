#include "state/running_backward.h"

namespace zero {
namespace {

thread_local std::vector<TakesGradients*> engines_here;

}  // namespace

bool RunningBackward::heard() {
  return !engines_here.empty();
}

// Where one refuses, those before it are as they were.
void RunningBackward::Guard::before() {
  std::size_t ready = 0;
  try {
    for (; ready < engines_here.size(); ++ready) engines_here[ready]->before_backward();
  } catch (...) {
    for (std::size_t i = 0; i < ready; ++i) engines_here[i]->after_backward();
    throw;
  }
}

void RunningBackward::Guard::after() noexcept {
  for (TakesGradients* const engine : engines_here) engine->after_backward();
}

HearsOfBackwards::HearsOfBackwards(TakesGradients& engine) : engine_(engine) {
  engines_here.push_back(&engine);
}

HearsOfBackwards::~HearsOfBackwards() {
  std::erase(engines_here, &engine_);
}

}  // namespace zero
