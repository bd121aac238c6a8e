// What keeps activations few, and what must be kept of them.
#include "native/bindings.h"
#include "zero/activation_report.h"
#include "zero/activations.h"
#include "zero/cross_entropy.h"
#include "zero/error.h"

namespace zero::python {
namespace {

LossReduction reduction_named(const std::string& name) {
  if (name == "mean") return LossReduction::mean;
  if (name == "sum") return LossReduction::sum;
  throw ConfigError("zero.cross_entropy: there is no reduction '" + name + "'", "mean or sum");
}

at::Tensor loss(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& targets,
                const std::optional<at::Tensor>& bias, std::int64_t ignore_index, double label_smoothing,
                const std::string& reduction, std::int64_t pieces, std::int64_t piece_bytes) {
  return cross_entropy(hidden, weight, targets,
                       {.bias = bias.value_or(at::Tensor()),
                        .ignore_index = ignore_index,
                        .label_smoothing = label_smoothing,
                        .reduction = reduction_named(reduction),
                        .pieces = pieces,
                        .piece_bytes = piece_bytes});
}

void bind_activation_report(py::module_& module) {
  py::class_<ActivationReport>(module, "ActivationReport")
      .def_readonly("budget_bytes", &ActivationReport::budget_bytes)
      .def_readonly("unlimited_bytes", &ActivationReport::unlimited_bytes)
      .def_readonly("peak_bytes", &ActivationReport::peak_bytes)
      .def_readonly("planned_bytes", &ActivationReport::planned_bytes)
      .def_readonly("operators", &ActivationReport::operators)
      .def_readonly("recomputations", &ActivationReport::recomputations)
      .def_readonly("moved_bytes", &ActivationReport::moved_bytes)
      .def_readonly("recomputation_share", &ActivationReport::recomputation_share)
      .def_readonly("planning_seconds", &ActivationReport::planning_seconds);
}

}  // namespace

void bind_activations(py::module_& module) {
  bind_activation_report(module);
  module.def("keep", &keep, "tensor"_a, py::call_guard<py::gil_scoped_release>());
  const CrossEntropyOptions usual;
  module.def("cross_entropy", &loss, "hidden"_a, "weight"_a, "targets"_a, py::kw_only(), "bias"_a = py::none(),
             "ignore_index"_a = usual.ignore_index, "label_smoothing"_a = usual.label_smoothing, "reduction"_a = "mean",
             "pieces"_a = usual.pieces, "piece_bytes"_a = usual.piece_bytes, py::call_guard<py::gil_scoped_release>());
}

}  // namespace zero::python
