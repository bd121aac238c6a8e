// Plans, by name and settings.
#include "zero/plan.h"

#include <pybind11/operators.h>

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "native/bindings.h"
#include "zero/error.h"

namespace zero::python {
namespace {

using Share = std::variant<std::string, std::pair<std::string, double>>;  // of a state: a tier, or that and how much

Dtype reduction_named(const std::string& name) {
  const std::map<std::string, Dtype> dtypes = {{"fp32", Dtype::f32}, {"bf16", Dtype::bf16}, {"fp16", Dtype::f16}};
  const auto found = dtypes.find(name);
  if (found == dtypes.end()) throw ConfigError("gradients cannot be reduced in '" + name + "'", "fp32, bf16 or fp16");
  return found->second;
}

Wire wire_named(const std::string& wanted) {
  std::string all;
  for (const Wire wire : {Wire::native, Wire::fp32, Wire::bf16, Wire::fp16, Wire::fp8, Wire::int8, Wire::int4}) {
    if (name(wire) == wanted) return wire;
    all += (all.empty() ? "" : ", ") + std::string(name(wire));
  }
  throw ConfigError("parameters cannot travel as '" + wanted + "'", "one of " + all);
}

Plan offloaded(const Plan& plan, const std::map<std::string, Share>& states) {
  Plan result = plan;
  for (const auto& [state, where] : states) {
    const auto* const part = std::get_if<std::pair<std::string, double>>(&where);
    const std::string& tier = part != nullptr ? part->first : std::get<std::string>(where);
    result = result.offload(state_named(state), tier_named(tier), part != nullptr ? part->second : 1);
  }
  return result;
}

Plan made(const std::string& preset, const std::string& precision, int accumulate, bool reproducible,
          const std::optional<std::string>& reduce_in, const std::optional<std::string>& gather_in,
          const std::map<std::string, Share>& offload, bool delay_update, std::int64_t resident_budget) {
  Plan plan = Plan::named(preset)
                  .precision(precision_named(precision))
                  .accumulate(accumulate)
                  .reproducible(reproducible)
                  .resident_budget(resident_budget);
  if (reduce_in) plan = plan.reduce_in(reduction_named(*reduce_in));
  if (gather_in) plan = plan.gather_in(wire_named(*gather_in));
  return offloaded(plan, offload).delay_update(delay_update);
}

}  // namespace

void bind_plan(py::module_& module) {
  py::class_<Plan>(module, "Plan")
      .def(py::init(&made), "preset"_a, py::kw_only(), "precision"_a = "fp32", "accumulate"_a = 1,
           "reproducible"_a = false, "reduce_in"_a = py::none(), "gather_in"_a = py::none(),
           "offload"_a = std::map<std::string, Share>(), "delay_update"_a = false, "resident_budget"_a = 0)
      .def_static("presets", &Plan::presets)
      .def_property_readonly("label", &Plan::label)
      .def_property_readonly("preset", &Plan::preset)
      .def_property_readonly("precision", [](const Plan& plan) { return name(plan.precision()); })
      .def_property_readonly("accumulate", py::overload_cast<>(&Plan::accumulate, py::const_))
      .def(py::self == py::self)
      .def("__repr__", [](const Plan& plan) {
        return "<zero.Plan: " + plan.label() + ", " + std::string(name(plan.precision())) + ">";
      });
}

}  // namespace zero::python
