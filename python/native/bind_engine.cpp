// Engines, and scopes in which parameters are whole.
#include "native/bind_engine.h"

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "native/modules.h"
#include "zero/error.h"
#include "zero/tensor_automatic.h"

namespace zero::python {
namespace {

using Released = py::call_guard<py::gil_scoped_release>;

Engine* built(py::handle module, const World& world, int shard, int tensor, const Plan& plan,
              const Optimizer& optimizer, const Options& options) {
  const auto tree = described(module);
  const py::gil_scoped_release released;
  const Mesh mesh = shard == 0 && tensor == 1 ? Mesh(world) : Mesh(world, {.shard = shard, .tensor = tensor});
  return std::make_unique<Engine>(*tree, mesh, plan, optimizer, options).release();
}

// By the names of torch.optim, which LibTorch's options have too.
template <class Use>
void each_value(torch::optim::OptimizerOptions& any, const Use& use) {
  double lr = any.get_lr();
  use("lr", lr);
  any.set_lr(lr);
  const auto adams = [&](auto& options) {
    use("betas", options.betas());
    use("eps", options.eps());
    use("weight_decay", options.weight_decay());
    use("amsgrad", options.amsgrad());
  };
  if (auto* const adamw = dynamic_cast<torch::optim::AdamWOptions*>(&any)) adams(*adamw);
  if (auto* const adam = dynamic_cast<torch::optim::AdamOptions*>(&any)) adams(*adam);
  if (auto* const sgd = dynamic_cast<torch::optim::SGDOptions*>(&any)) {
    use("momentum", sgd->momentum());
    use("dampening", sgd->dampening());
    use("weight_decay", sgd->weight_decay());
    use("nesterov", sgd->nesterov());
  }
  if (auto* const adagrad = dynamic_cast<torch::optim::AdagradOptions*>(&any)) {
    use("lr_decay", adagrad->lr_decay());
    use("weight_decay", adagrad->weight_decay());
    use("initial_accumulator_value", adagrad->initial_accumulator_value());
    use("eps", adagrad->eps());
  }
  if (auto* const rmsprop = dynamic_cast<torch::optim::RMSpropOptions*>(&any)) {
    use("alpha", rmsprop->alpha());
    use("eps", rmsprop->eps());
    use("weight_decay", rmsprop->weight_decay());
    use("momentum", rmsprop->momentum());
    use("centered", rmsprop->centered());
  }
}

using Group = std::pair<std::vector<at::Tensor>, py::dict>;

std::vector<Group> groups_of(Engine& engine) {
  std::vector<Group> groups;
  for (auto& group : engine.param_groups()) {
    py::dict values;
    each_value(group.options(), [&](const char* name, const auto& value) { values[name] = value; });
    groups.emplace_back(group.params(), values);
  }
  return groups;
}

void set_groups(Engine& engine, const std::vector<py::dict>& values) {
  auto& groups = engine.param_groups();
  for (std::size_t i = 0; i < groups.size(); ++i)
    each_value(groups[i].options(), [&](const char* name, auto& value) {
      value = values.at(i)[name].template cast<std::remove_reference_t<decltype(value)>>();
    });
}

void each_slice(const Engine& engine, const py::function& use) {
  const py::gil_scoped_release released;
  engine.for_each_gradient_slice([&](const GradientSlice& slice) {
    const py::gil_scoped_acquire held;
    use(slice.parameter, slice.begin, slice.sum, slice.scale);
  });
}

// A Gather that begins and ends by a `with` statement.
class Scope {
 public:
  Scope(std::vector<at::Tensor> parameters, std::optional<int> from_rank)
      : parameters_(std::move(parameters)), from_rank_(from_rank) {}
  ~Scope() { leave_without(); }
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;

  void enter() {
    if (gather_ != nullptr) throw StateError("a gather scope is entered once at a time");
    gather_ = std::make_unique<Gather>(parameters_, from_rank_);
  }

  // Its end may throw, which no smart pointer lets through.
  void leave() { delete gather_.release(); }

  // A Gather knows by the exception that is under way that what was written is to be dropped.
  void leave_without() noexcept {
    struct Left {};
    try {
      const std::unique_ptr<Gather> held = std::move(gather_);
      if (held) throw Left();
    } catch (const Left&) {
    }
  }

 private:
  std::vector<at::Tensor> parameters_;
  std::optional<int> from_rank_;
  std::unique_ptr<Gather> gather_;
};

bool leave(Scope& scope, bool failed) {
  const py::gil_scoped_release released;
  if (failed) {
    scope.leave_without();
  } else {
    scope.leave();
  }
  return false;
}

void bind_scope(py::module_& module) {
  py::class_<Scope>(module, "Gather")
      .def(py::init<std::vector<at::Tensor>, std::optional<int>>(), "parameters"_a, "from_rank"_a = py::none())
      .def("__enter__", &Scope::enter, Released())
      .def("__exit__", [](Scope& scope, const py::object& type, const py::object&, const py::object&) {
        return leave(scope, !type.is_none());
      });
}

// By parameter, how it is cut.
std::map<std::string, std::string> automatic_cuts_of(const py::object& model, int ranks,
                                                     const std::function<void()>& micro_batch) {
  const std::shared_ptr<DescribedModule> module = described(model);
  const TensorRule rule = tensor_automatic(*module, ranks, micro_batch);
  std::map<std::string, std::string> cuts;
  for (const auto& each : module->named_parameters()) {
    const auto cut = rule({each.key(), each.value().sizes().vec(), false, false});
    cuts[each.key()] = cut ? name(*cut) : "whole";
  }
  return cuts;
}

}  // namespace

void bind_engine(py::module_& module) {
  bind_scope(module);
  EngineClass engine(module, "Engine");
  bind_saves(engine);
  module.def("whole", &whole, "tensor"_a, Released());
  module.def("tensor_automatic", &automatic_cuts_of, "module"_a, "ranks"_a, "micro_batch"_a);
  engine.def(py::init(&built), "module"_a, "world"_a, "shard"_a, "tensor"_a, "plan"_a, "optimizer"_a, "options"_a)
      .def("backward", &Engine::backward, "loss"_a, Released())
      .def("scale", &Engine::scale, "loss"_a, Released())
      .def("discard", &Engine::discard, Released())
      .def("step", py::overload_cast<>(&Engine::step), Released())
      .def("last_step", &Engine::last_step, py::return_value_policy::copy)
      .def("gradient", &Engine::gradient, "parameter"_a, Released())
      .def("main_parameter", &Engine::main_parameter, "parameter"_a, Released())
      .def("for_each_gradient_slice", &each_slice, "use"_a)
      .def("groups", &groups_of)
      .def("set_groups", &set_groups, "values"_a)
      .def("set_lr", &Engine::set_lr, "lr"_a)
      .def("zero_grad", [](Engine& self) { self.zero_grad(); })
      .def("request", &Engine::request, "bits"_a)
      .def(
          "release",
          [](Engine& self, bool computed) { self.release(computed ? ReleaseAs::computed : ReleaseAs::given); },
          "computed"_a, Released())
      .def("micro_batch", &Engine::micro_batch)
      .def("activations", &Engine::activations)
      .def("tensor_operators",
           [](const Engine& self) {
             std::map<std::string, std::pair<std::int64_t, std::int64_t>> operators;
             for (const TensorOperator& each : self.tensor_operators())
               operators[each.name] = {each.in_parts, each.whole};
             return operators;
           })
      .def("plan", &Engine::plan, py::return_value_policy::copy)
      .def("steps", &Engine::steps)
      .def("skipped_steps", &Engine::skipped_steps)
      .def("loss_scale", &Engine::loss_scale);
}

}  // namespace zero::python
