// Optimizers as values; their defaults are those of zero/optimizer.h.
#include "zero/optimizer.h"

#include <string>
#include <utility>

#include "native/bindings.h"
#include "zero/error.h"

namespace zero::python {
namespace {

using Betas = std::pair<double, double>;

MomentFormat format_named(const std::string& name) {
  if (name == "wide") return MomentFormat::wide;
  if (name == "bf16") return MomentFormat::bf16;
  if (name == "block8") return MomentFormat::block8;
  throw ConfigError("moments cannot be kept as '" + name + "'", "wide, bf16 or block8");
}

// What every optimizer has.
template <class Kind>
py::class_<Kind> bind(py::module_& module, const char* type) {
  return py::class_<Kind>(module, type)
      .def_readonly("lr", &Kind::lr)
      .def_readonly("weight_decay", &Kind::weight_decay)
      .def("__repr__", [](const Kind& optimizer) { return "<zero: " + describe(Optimizer(optimizer)) + ">"; });
}

template <class Kind>
Kind with_betas(Kind optimizer, Betas betas) {
  optimizer.beta1 = betas.first;
  optimizer.beta2 = betas.second;
  return optimizer;
}

void bind_simple(py::module_& module) {
  const Sgd sgd;
  bind<Sgd>(module, "SGD")
      .def(py::init([](double lr, double momentum, double dampening, double weight_decay, bool nesterov) {
             return Sgd{lr, momentum, dampening, weight_decay, nesterov};
           }),
           "lr"_a = sgd.lr, py::kw_only(), "momentum"_a = sgd.momentum, "dampening"_a = sgd.dampening,
           "weight_decay"_a = sgd.weight_decay, "nesterov"_a = sgd.nesterov);
  const AdaGrad adagrad;
  bind<AdaGrad>(module, "Adagrad")
      .def(py::init([](double lr, double lr_decay, double weight_decay, double initial, double eps) {
             return AdaGrad{lr, lr_decay, weight_decay, initial, eps};
           }),
           "lr"_a = adagrad.lr, py::kw_only(), "lr_decay"_a = adagrad.lr_decay, "weight_decay"_a = adagrad.weight_decay,
           "initial_accumulator_value"_a = adagrad.initial_accumulator_value, "eps"_a = adagrad.eps);
  const RmsProp rms;
  bind<RmsProp>(module, "RMSprop")
      .def(py::init([](double lr, double alpha, double eps, double weight_decay, double momentum, bool centered,
                       bool inside) { return RmsProp{lr, alpha, eps, weight_decay, momentum, centered, inside}; }),
           "lr"_a = rms.lr, py::kw_only(), "alpha"_a = rms.alpha, "eps"_a = rms.eps,
           "weight_decay"_a = rms.weight_decay, "momentum"_a = rms.momentum, "centered"_a = rms.centered,
           "eps_inside_root"_a = rms.eps_inside_root);
  const Lion lion;
  bind<Lion>(module, "Lion")
      .def(py::init([](double lr, Betas betas, double weight_decay) {
             return with_betas(Lion{.lr = lr, .weight_decay = weight_decay}, betas);
           }),
           "lr"_a = lion.lr, py::kw_only(), "betas"_a = Betas(lion.beta1, lion.beta2),
           "weight_decay"_a = lion.weight_decay);
}

void bind_adams(py::module_& module) {
  const Adam adam;
  bind<Adam>(module, "Adam")
      .def(py::init(
               [](double lr, Betas betas, double eps, double weight_decay, bool amsgrad, const std::string& moments) {
                 return with_betas(Adam{.lr = lr,
                                        .eps = eps,
                                        .weight_decay = weight_decay,
                                        .amsgrad = amsgrad,
                                        .format = format_named(moments)},
                                   betas);
               }),
           "lr"_a = adam.lr, py::kw_only(), "betas"_a = Betas(adam.beta1, adam.beta2), "eps"_a = adam.eps,
           "weight_decay"_a = adam.weight_decay, "amsgrad"_a = adam.amsgrad, "moments"_a = "wide");
  const AdamW adamw;
  bind<AdamW>(module, "AdamW")
      .def(py::init([](double lr, Betas betas, double eps, double weight_decay, bool amsgrad, bool decay_by_lr,
                       const std::string& moments) {
             return with_betas(AdamW{.lr = lr,
                                     .eps = eps,
                                     .weight_decay = weight_decay,
                                     .amsgrad = amsgrad,
                                     .decay_by_lr = decay_by_lr,
                                     .format = format_named(moments)},
                               betas);
           }),
           "lr"_a = adamw.lr, py::kw_only(), "betas"_a = Betas(adamw.beta1, adamw.beta2), "eps"_a = adamw.eps,
           "weight_decay"_a = adamw.weight_decay, "amsgrad"_a = adamw.amsgrad, "decay_by_lr"_a = adamw.decay_by_lr,
           "moments"_a = "wide");
}

void bind_whole(py::module_& module) {
  const Muon muon;
  bind<Muon>(module, "Muon")
      .def(py::init([](double lr, double momentum, double weight_decay, bool nesterov, int iterations, bool as_adamw,
                       std::function<bool(const ParameterInfo&)> takes, const AdamW& rest) {
             return Muon{
                 lr,  momentum, weight_decay, nesterov, iterations, as_adamw, takes ? std::move(takes) : hidden_matrix,
                 rest};
           }),
           "lr"_a = muon.lr, py::kw_only(), "momentum"_a = muon.momentum, "weight_decay"_a = muon.weight_decay,
           "nesterov"_a = muon.nesterov, "iterations"_a = muon.iterations,
           "as_large_as_adamw"_a = muon.as_large_as_adamw, "takes"_a = py::none(), "rest"_a = AdamW());
  const Adafactor factor;
  bind<Adafactor>(module, "Adafactor")
      .def(py::init(
               [](double lr, double beta2_decay, double eps_square, double eps_step, double clip, double weight_decay) {
                 return Adafactor{lr, beta2_decay, eps_square, eps_step, clip, weight_decay};
               }),
           "lr"_a = factor.lr, py::kw_only(), "beta2_decay"_a = factor.beta2_decay, "eps_square"_a = factor.eps_square,
           "eps_step"_a = factor.eps_step, "clip"_a = factor.clip, "weight_decay"_a = factor.weight_decay);
  const Lamb lamb;
  bind<Lamb>(module, "Lamb")
      .def(py::init([](double lr, Betas betas, double eps, double weight_decay) {
             return with_betas(Lamb{.lr = lr, .eps = eps, .weight_decay = weight_decay}, betas);
           }),
           "lr"_a = lamb.lr, py::kw_only(), "betas"_a = Betas(lamb.beta1, lamb.beta2), "eps"_a = lamb.eps,
           "weight_decay"_a = lamb.weight_decay);
}

}  // namespace

void bind_optimizers(py::module_& module) {
  py::class_<ParameterInfo>(module, "ParameterInfo")
      .def_readonly("name", &ParameterInfo::name)
      .def_readonly("shape", &ParameterInfo::shape)
      .def_readonly("embedding", &ParameterInfo::embedding)
      .def_readonly("norm", &ParameterInfo::norm);
  bind_simple(module);
  bind_adams(module);
  bind_whole(module);
  py::class_<ParamGroup>(module, "ParamGroup")
      .def(py::init([](std::function<bool(const ParameterInfo&)> takes, std::optional<double> weight_decay,
                       double lr_scale, std::optional<Optimizer> optimizer) {
             return ParamGroup{std::move(takes), weight_decay, lr_scale, std::move(optimizer)};
           }),
           "takes"_a.none(false), py::kw_only(), "weight_decay"_a = py::none(), "lr_scale"_a = 1.0,
           "optimizer"_a = py::none());
  module.def("hidden_matrix", &hidden_matrix, "parameter"_a);
  module.def("norms", &norms, "parameter"_a);
  module.def("no_decay_on_norms_biases_embeddings", &no_decay_on_norms_biases_embeddings);
}

}  // namespace zero::python
