// Plans, by name and settings.
#include "zero/plan.h"

#include <pybind11/operators.h>

#include <map>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "native/bindings.h"
#include "partition/plan_settings.h"
#include "zero/error.h"

namespace zero::python {
namespace {

using Share = std::variant<std::string, std::pair<std::string, double>>;  // of a state: a tier, or that and how much

Plan with_offload(const Plan& plan, const std::map<std::string, Share>& states) {
  Plan result = plan;
  for (const auto& [state, where] : states) {
    const auto* const part = std::get_if<std::pair<std::string, double>>(&where);
    const std::string& tier = part != nullptr ? part->first : std::get<std::string>(where);
    result = result.offload(state_named(state), tier_named(tier), part != nullptr ? part->second : 1);
  }
  return result;
}

const PlanSetting& setting_named(const std::string& name) {
  for (const PlanSetting& each : plan_settings())
    if (each.name == name) return each;
  throw py::type_error("Plan() got an unexpected keyword argument '" + name + "'");
}

// Of the setting's kind.
SettingValue value_of(const PlanSetting& setting, py::handle given) {
  const SettingValue value =
      std::visit([&]<class V>(const V&) -> SettingValue { return given.cast<V>(); }, setting.get({}));
  const auto* const number = std::get_if<std::int64_t>(&value);
  if (number != nullptr && (*number > setting.most || *number < -setting.most)) throw py::cast_error();
  return value;
}

// None leaves a text to the plan.
Plan with(const Plan& plan, const PlanSetting& setting, py::handle given) try {
  if (setting.name == "offload") return with_offload(plan, given.cast<std::map<std::string, Share>>());
  if (given.is_none() && std::holds_alternative<std::string>(setting.get({}))) return plan;
  return setting.set(plan, value_of(setting, given));
} catch (const py::cast_error&) {
  throw py::type_error("Plan(): `" + std::string(setting.name) + "` cannot be " + std::string(py::repr(given)));
}

Plan made(const std::string& preset, const py::kwargs& settings) {
  Plan plan = Plan::named(preset);
  for (const auto& [key, given] : settings) plan = with(plan, setting_named(key.cast<std::string>()), given);
  return plan;
}

// As pybind11 tells of functions whose arguments are not a table's.
std::string signature() {
  std::string text = "__init__(self: zero._native.Plan, preset: str, *";
  for (const PlanSetting& each : plan_settings())
    text += ", " + std::string(each.name) + " = " + std::string(py::repr(py::cast(each.get({}))));
  return text + ") -> None";
}

}  // namespace

void bind_plan(py::module_& module) {
  py::options options;
  options.disable_function_signatures();
  py::class_<Plan> bound(module, "Plan");
  bound.def(py::init(&made), "preset"_a, signature().c_str());
  options.enable_function_signatures();
  bound.def_static("presets", &Plan::presets)
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
