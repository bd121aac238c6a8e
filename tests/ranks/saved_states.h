// The state of an engine behind some steps, and what another one reads of it.
#pragma once

#include <memory>
#include <string>

#include "harness.h"
#include "states.h"

namespace zero::test {

// After so many steps, which it saves; after none, of what is in the folder.
template <class Model>
std::unique_ptr<MemoryState> state_of(const Job& job, const std::string& folder, int steps) {
  auto state = std::make_unique<MemoryState>();
  on_ranks(job, Course<Model>{}, [&](Model& model, Engine& engine, int) {
    if (steps == 0) engine.load(folder);
    for (int step = 0; step < steps; ++step) train_step(model, engine);
    if (steps > 0) engine.save(folder);
    state->add(engine.state());
  });
  return state;
}

}  // namespace zero::test
