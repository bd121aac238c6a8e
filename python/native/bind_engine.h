// An engine as Python holds it.
#pragma once

#include <memory>

#include "native/bindings.h"
#include "zero/engine.h"

namespace zero::python {

// The end of an engine waits for its thread.
struct EndsReleased {
  void operator()(Engine* engine) const {
    const py::gil_scoped_release released;
    delete engine;
  }
};
using EngineClass = py::class_<Engine, std::unique_ptr<Engine, EndsReleased>>;

void bind_saves(EngineClass& engine);

}  // namespace zero::python
