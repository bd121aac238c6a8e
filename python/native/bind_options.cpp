// What an engine is built with, and what a step reports.
#include <string>
#include <utility>
#include <vector>

#include "native/bindings.h"
#include "zero/engine.h"
#include "zero/error.h"

namespace zero::python {
namespace {

using Chooses = std::function<bool(const ParameterInfo&)>;

OutsideGradients outside_named(const std::string& name) {
  if (name == "drop") return OutsideGradients::drop;
  if (name == "add") return OutsideGradients::add;
  throw ConfigError("gradients of another engine's backward cannot be treated as '" + name + "'", "drop or add");
}

Scaling scaling_named(const std::string& name) {
  if (name == "current") return Scaling::current;
  if (name == "delayed") return Scaling::delayed;
  throw ConfigError("there is no scaling '" + name + "'", "current or delayed");
}

DiskQueueKind queue_named(const std::string& name) {
  if (name == "auto") return DiskQueueKind::automatic;
  if (name == "io_uring") return DiskQueueKind::io_uring;
  if (name == "threads") return DiskQueueKind::threads;
  throw ConfigError("there is no queue '" + name + "' for disks", "auto, io_uring or threads");
}

TensorRule rule_named(const std::vector<std::pair<std::string, std::string>>& modules) {
  return modules.empty() ? TensorRule() : tensor_plan(modules);
}

void bind_parts(py::module_& module) {
  const LossScale scale;
  py::class_<LossScale>(module, "LossScale")
      .def(py::init(
               [](double initial, bool dynamic, double growth, std::int64_t window, double backoff, int hysteresis,
                  double floor) { return LossScale{initial, dynamic, growth, window, backoff, hysteresis, floor}; }),
           "initial"_a = scale.initial, py::kw_only(), "dynamic"_a = scale.dynamic, "growth"_a = scale.growth,
           "window"_a = scale.window, "backoff"_a = scale.backoff, "hysteresis"_a = scale.hysteresis,
           "floor"_a = scale.floor);
  const Float8 float8;
  py::class_<Float8>(module, "Float8")
      .def(py::init([](const std::string& scaling, int history, Chooses takes) {
             return Float8{scaling_named(scaling), history, takes ? std::move(takes) : hidden_matrix};
           }),
           py::kw_only(), "scaling"_a = "current", "history"_a = float8.history, "takes"_a = py::none());
  const DiskOptions disk;
  py::class_<DiskOptions>(module, "Disk")
      .def(py::init([](const std::vector<std::string>& directories, bool checks, std::int64_t block, int depth,
                       bool direct, const std::string& queue) {
             return DiskOptions{
                 {directories.begin(), directories.end()}, checks, block, depth, direct, queue_named(queue)};
           }),
           "directories"_a, py::kw_only(), "checks"_a = disk.checks, "block"_a = disk.block, "depth"_a = disk.depth,
           "direct"_a = disk.direct, "queue"_a = "auto");
}

// A ModuleInfo that Python may keep.
struct KeptModule {
  std::string name;
  std::string type;
  std::int64_t numel;
  bool in_container;
  bool container;
};
using Rule = std::function<bool(const KeptModule&)>;

UnitRule rule_of(Rule rule) {
  if (!rule) return {};
  return [rule = std::move(rule)](const ModuleInfo& module) {
    return rule(
        {std::string(module.name), std::string(module.type), module.numel, module.in_container, module.container});
  };
}
Rule told(UnitRule rule) {
  return [rule = std::move(rule)](const KeptModule& module) {
    return rule({module.name, module.type, module.numel, module.in_container, module.container});
  };
}

void bind_units(py::module_& module) {
  py::class_<KeptModule>(module, "ModuleInfo")
      .def_readonly("name", &KeptModule::name)
      .def_readonly("type", &KeptModule::type)
      .def_readonly("numel", &KeptModule::numel)
      .def_readonly("in_container", &KeptModule::in_container)
      .def_readonly("container", &KeptModule::container);
  module.def("units_in_containers", [] { return told(units_in_containers()); });
  module.def(
      "units_of_types", [](const std::vector<std::string>& types) { return told(units_of_types(types)); }, "types"_a);
  module.def(
      "units_named", [](const std::vector<std::string>& names) { return told(units_named(names)); }, "names"_a);
  module.def(
      "units_by_size", [](std::int64_t least, std::int64_t most) { return told(units_by_size(least, most)); },
      "least"_a, "most"_a);
}

void bind_schedules(py::module_& module) {
  module.def("constant_schedule", &constant_schedule, "warmup"_a = 0);
  module.def(
      "cosine_schedule",
      [](std::int64_t steps, std::int64_t warmup, double floor) {
        return cosine_schedule({warmup, steps}, floor);
      },
      "steps"_a, py::kw_only(), "warmup"_a = 0, "floor"_a = 0.1);
  module.def(
      "linear_schedule",
      [](std::int64_t steps, std::int64_t warmup, double floor) {
        return linear_schedule({warmup, steps}, floor);
      },
      "steps"_a, py::kw_only(), "warmup"_a = 0, "floor"_a = 0.0);
  module.def("inverse_root_schedule", &inverse_root_schedule, "warmup"_a);
  module.def(
      "stable_decay_schedule",
      [](std::int64_t steps, std::int64_t decay, std::int64_t warmup, double floor) {
        return stable_decay_schedule({warmup, steps}, decay, floor);
      },
      "steps"_a, "decay"_a, py::kw_only(), "warmup"_a = 0, "floor"_a = 0.0);
}

void bind_report(py::module_& module) {
  py::class_<StepReport>(module, "StepReport")
      .def_readonly("applied", &StepReport::applied)
      .def_readonly("skipped", &StepReport::skipped)
      .def_readonly("loss", &StepReport::loss)
      .def_readonly("grad_norm", &StepReport::grad_norm)
      .def_readonly("group_norms", &StepReport::group_norms)
      .def_readonly("lr", &StepReport::lr)
      .def_readonly("loss_scale", &StepReport::loss_scale)
      .def_readonly("step", &StepReport::step)
      .def_readonly("requests", &StepReport::requests)
      .def_readonly("saved", &StepReport::saved)
      .def_readonly("save_fault", &StepReport::save_fault)
      .def_readonly("update_seconds", &StepReport::update_seconds)
      .def_readonly("gather_seconds", &StepReport::gather_seconds)
      .def_readonly("reduce_seconds", &StepReport::reduce_seconds)
      .def_readonly("vote_seconds", &StepReport::vote_seconds)
      .def("__repr__", [](const StepReport& report) {
        return py::str("<zero.StepReport: step {}, applied {}, loss {}, grad_norm {}, lr {}>")
            .format(report.step, report.applied, report.loss, report.grad_norm, report.lr);
      });
}

}  // namespace

void bind_options(py::module_& module) {
  bind_parts(module);
  bind_units(module);
  bind_schedules(module);
  bind_report(module);
  py::class_<Options>(module, "Options")
      .def(py::init([](double clip, std::optional<std::uint64_t> seed, std::vector<ParamGroup> groups,
                       Schedule schedule, Chooses full_precision, std::optional<LossScale> loss_scale, Rule units,
                       Chooses ignored, bool group_norms, const Float8& float8, const std::string& outside,
                       const DiskOptions& disk, const std::vector<std::pair<std::string, std::string>>& tensor,
                       int tensor_grain, bool sequence_parallel) {
             Options options;
             options.clip = clip;
             options.seed = seed;
             options.groups = std::move(groups);
             options.schedule = std::move(schedule);
             options.full_precision = std::move(full_precision);
             options.loss_scale = loss_scale;
             options.units = rule_of(std::move(units));
             options.ignored = std::move(ignored);
             options.group_norms = group_norms;
             options.float8 = float8;
             options.outside = outside_named(outside);
             options.disk = disk;
             options.tensor = rule_named(tensor);
             options.tensor_grain = tensor_grain;
             options.sequence_parallel = sequence_parallel;
             return options;
           }),
           py::kw_only(), "clip"_a = 0.0, "seed"_a = py::none(), "groups"_a = std::vector<ParamGroup>(),
           "schedule"_a = py::none(), "full_precision"_a = py::none(), "loss_scale"_a = py::none(),
           "units"_a = py::none(), "ignored"_a = py::none(), "group_norms"_a = false, "float8"_a = Float8(),
           "outside"_a = "drop", "disk"_a = DiskOptions(),
           "tensor"_a = std::vector<std::pair<std::string, std::string>>(), "tensor_grain"_a = 1,
           "sequence_parallel"_a = false);
}

}  // namespace zero::python
