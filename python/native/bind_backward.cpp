// Backwards that Python begins, told to the engines.
#include "zero/backward.h"

#include <torch/csrc/autograd/python_variable.h>

#include <vector>

#include "native/bindings.h"
#include "zero/samples.h"

namespace zero::python {
namespace {

// Undefined for what is no tensor: None, and the edges of a graph.
std::vector<at::Tensor> tensors_of(const py::sequence& objects) {
  std::vector<at::Tensor> tensors;
  for (const auto& object : objects)
    tensors.push_back(THPVariable_Check(object.ptr()) ? THPVariable_Unpack(object.ptr()) : at::Tensor());
  return tensors;
}

void run(const py::sequence& roots, const py::sequence& gradients, const py::function& backward, bool create_graph) {
  const std::vector<at::Tensor> losses = tensors_of(roots), seeds = tensors_of(gradients);
  const py::gil_scoped_release released;
  const auto held = [&] {
    const py::gil_scoped_acquire python;
    backward();
  };
  around_backward(losses, seeds, held, create_graph);
}

}  // namespace

void bind_backward(py::module_& module) {
  module.def("around_backward", &run, "roots"_a, "gradients"_a, "backward"_a, "create_graph"_a);
  module.def("no_data", &no_data);
}

}  // namespace zero::python
