// The module zero._native: the library's own classes, as Python sees them. The package zero is what programs import.
#include <pybind11/chrono.h>

#include <tuple>

#include "native/bindings.h"
#include "zero/zero.h"

namespace zero::python {
namespace {

// Under the name that programs know it by.
template <class Fault>
py::object bind_error(py::module_& module, const char* name, py::handle base) {
  py::object error = py::register_exception<Fault>(module, name, base);
  error.attr("__module__") = "zero";
  return error;
}

// zero.Error is a RuntimeError, as what LibTorch makes of an error of ours inside one of its operators is.
void bind_errors(py::module_& module) {
  const py::object error = bind_error<Error>(module, "Error", PyExc_RuntimeError);
  bind_error<ConfigError>(module, "ConfigError", error);
  bind_error<StateError>(module, "StateError", error);
  bind_error<CommError>(module, "CommError", error);
  bind_error<OutOfMemoryError>(module, "OutOfMemoryError", error);
  bind_error<CheckpointError>(module, "CheckpointError", error);
}

Transport known_transport(const std::string& name) {
  if (const auto transport = transport_named(name)) return *transport;
  throw ConfigError("there is no transport '" + name + "'", "auto, tcp or gloo");
}

// Rank, size, host and port.
using Meeting = std::tuple<int, int, std::string, int>;

World joined(double timeout, std::optional<bool> check, const std::string& transport, int ranks_per_host, bool arena,
             bool debug, const std::optional<Meeting>& meeting) {
  InitOptions options;
  options.timeout = std::chrono::milliseconds(static_cast<std::int64_t>(timeout * 1000));
  options.check = check.value_or(options.check);
  options.transport = known_transport(transport);
  options.ranks_per_host = ranks_per_host;
  options.arena = arena;
  options.debug = debug;
  if (meeting) {
    const auto& [rank, size, host, port] = *meeting;
    options.ranks = Ranks{.rank = rank, .size = size, .host = host, .port = port, .has_store = true};
  }
  return init(options);
}

void bind_world(py::module_& module) {
  py::class_<World>(module, "World")
      .def_property_readonly("rank", &World::rank)
      .def_property_readonly("size", &World::size)
      .def_property_readonly("local_rank", &World::local_rank)
      .def_property_readonly("local_size", &World::local_size)
      .def("__repr__", [](const World& world) {
        return "<zero.World: rank " + std::to_string(world.rank()) + " of " + std::to_string(world.size()) + ">";
      });
  module.def("join", &joined, "timeout"_a, "check"_a, "transport"_a, "ranks_per_host"_a, "arena"_a, "debug"_a,
             "meeting"_a, py::call_guard<py::gil_scoped_release>());
}

}  // namespace
}  // namespace zero::python

PYBIND11_MODULE(_native, module) {
  using namespace zero::python;
  bind_errors(module);
  bind_world(module);
  bind_plan(module);
  bind_optimizers(module);
  bind_options(module);
  bind_checkpoints(module);
  bind_backward(module);
  bind_activations(module);
  bind_engine(module);
}
