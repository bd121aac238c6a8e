// The parts of zero._native.
#pragma once

#include <pybind11/functional.h>
#include <torch/csrc/utils/pybind.h>

namespace zero::python {

using namespace pybind11::literals;

void bind_plan(py::module_& module);
void bind_optimizers(py::module_& module);
void bind_options(py::module_& module);
void bind_checkpoints(py::module_& module);
void bind_backward(py::module_& module);
void bind_activations(py::module_& module);
void bind_engine(py::module_& module);

}  // namespace zero::python
