#include "zero/optimizer.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <map>
#include <set>
#include <sstream>
#include <utility>

#include "base/text.h"
#include "zero/error.h"

namespace zero {

namespace {

int moments_of(const Sgd& o) {
  return o.momentum != 0 ? 1 : 0;
}
int moments_of(const AdaGrad&) {
  return 1;
}
int moments_of(const RmsProp& o) {
  return 1 + (o.momentum != 0 ? 1 : 0) + (o.centered ? 1 : 0);
}
int moments_of(const Adam& o) {
  return o.amsgrad ? 3 : 2;
}
int moments_of(const AdamW& o) {
  return o.amsgrad ? 3 : 2;
}
int moments_of(const Lion&) {
  return 1;
}
int moments_of(const Muon&) {
  return 1;
}
int moments_of(const Adafactor& o) {
  return o.factored ? 0 : 1;
}
int moments_of(const Lamb&) {
  return 2;
}
int moments_of(const TorchOptimizer&) {
  return 0;
}

std::string_view name_of(const Sgd& o) {
  return o.momentum != 0 ? "momentum" : "sgd";
}
std::string_view name_of(const AdaGrad&) {
  return "adagrad";
}
std::string_view name_of(const RmsProp&) {
  return "rmsprop";
}
std::string_view name_of(const Adam&) {
  return "adam";
}
std::string_view name_of(const AdamW&) {
  return "adamw";
}
std::string_view name_of(const Lion&) {
  return "lion";
}
std::string_view name_of(const Muon&) {
  return "muon";
}
std::string_view name_of(const Adafactor&) {
  return "adafactor";
}
std::string_view name_of(const Lamb&) {
  return "lamb";
}
std::string_view name_of(const TorchOptimizer& o) {
  return o.label;
}

using Fields = std::vector<std::pair<const char*, double>>;

Fields fields_of(const Sgd& o) {
  return {{"momentum", o.momentum}, {"dampening", o.dampening}, {"nesterov", o.nesterov}};
}
Fields fields_of(const AdaGrad& o) {
  return {{"lr_decay", o.lr_decay}, {"initial_accumulator_value", o.initial_accumulator_value}, {"eps", o.eps}};
}
Fields fields_of(const RmsProp& o) {
  return {{"alpha", o.alpha},
          {"eps", o.eps},
          {"momentum", o.momentum},
          {"centered", o.centered},
          {"eps_inside_root", o.eps_inside_root}};
}
Fields fields_of(const Adam& o) {
  return {{"beta1", o.beta1},
          {"beta2", o.beta2},
          {"eps", o.eps},
          {"amsgrad", o.amsgrad},
          {"moment format", static_cast<double>(o.format)}};
}
Fields fields_of(const AdamW& o) {
  return {{"beta1", o.beta1},
          {"beta2", o.beta2},
          {"eps", o.eps},
          {"amsgrad", o.amsgrad},
          {"decay_by_lr", o.decay_by_lr},
          {"moment format", static_cast<double>(o.format)}};
}
Fields fields_of(const Lion& o) {
  return {{"beta1", o.beta1}, {"beta2", o.beta2}};
}
Fields fields_of(const Muon& o) {
  return {{"momentum", o.momentum},
          {"nesterov", o.nesterov},
          {"iterations", o.iterations},
          {"as_large_as_adamw", o.as_large_as_adamw}};
}
Fields fields_of(const Adafactor& o) {
  return {{"beta2_decay", o.beta2_decay},
          {"eps_square", o.eps_square},
          {"eps_step", o.eps_step},
          {"clip", o.clip},
          {"factored", o.factored}};
}
Fields fields_of(const TorchOptimizer&) {
  return {};
}
Fields fields_of(const Lamb& o) {
  return {{"beta1", o.beta1}, {"beta2", o.beta2}, {"eps", o.eps}};
}

// Collects sentences about one optimizer.
class OptimizerFaults {
 public:
  explicit OptimizerFaults(std::string_view name) : name_(name) {}

  void not_negative(const char* what, double value) { expect(what, value, value >= 0, "not negative"); }
  void fraction(const char* what, double value) { expect(what, value, value >= 0 && value < 1, "in [0, 1)"); }
  void sentence(bool good, const std::string& text) {
    if (!good) faults_.push_back(name_ + ": " + text);
  }

  void fields(const Sgd& o) {
    not_negative("momentum", o.momentum);
    sentence(std::isfinite(o.dampening), "dampening must be a number");
    sentence(!o.nesterov || (o.momentum > 0 && o.dampening == 0), "nesterov needs a momentum and no dampening");
  }
  void fields(const AdaGrad& o) {
    not_negative("lr_decay", o.lr_decay);
    not_negative("initial_accumulator_value", o.initial_accumulator_value);
    not_negative("eps", o.eps);
  }
  void fields(const RmsProp& o) {
    fraction("alpha", o.alpha);
    not_negative("eps", o.eps);
    not_negative("momentum", o.momentum);
  }
  void fields(const Adam& o) {
    betas(o.beta1, o.beta2);
    not_negative("eps", o.eps);
  }
  void fields(const AdamW& o) {
    betas(o.beta1, o.beta2);
    not_negative("eps", o.eps);
  }
  void fields(const Lion& o) { betas(o.beta1, o.beta2); }
  void fields(const Muon& o) {
    fraction("momentum", o.momentum);
    sentence(o.iterations >= 1 && o.iterations <= 100, "iterations must be in [1, 100]");
    sentence(static_cast<bool>(o.takes), "takes must be a function");
    for (const std::string& fault : zero::faults(Optimizer(o.rest))) sentence(false, "rest: " + fault);
  }
  void fields(const Adafactor& o) {
    sentence(std::isfinite(o.beta2_decay) && o.beta2_decay <= 0, "beta2_decay must be a number that is not positive");
    expect("eps_square", o.eps_square, o.eps_square > 0, "positive");
    not_negative("eps_step", o.eps_step);
    expect("clip", o.clip, o.clip > 0, "positive");
  }
  void fields(const TorchOptimizer& o) { sentence(static_cast<bool>(o.make), "make must be a function"); }
  void fields(const Lamb& o) {
    betas(o.beta1, o.beta2);
    not_negative("eps", o.eps);
  }

  std::vector<std::string> faults() && { return std::move(faults_); }

 private:
  void betas(double beta1, double beta2) {
    fraction("beta1", beta1);
    fraction("beta2", beta2);
  }
  void expect(const char* what, double value, bool good, const char* rule) {
    sentence(good && std::isfinite(value),
             std::string(what) + " must be a number, " + rule + ", but is " + shortest(value));
  }

  std::string name_;
  std::vector<std::string> faults_;
};

// The optimizer as it treats this parameter.
Optimizer for_parameter(const Optimizer& optimizer, const ParameterInfo& info) {
  if (const auto* muon = std::get_if<Muon>(&optimizer); muon != nullptr && muon->takes && !muon->takes(info))
    return muon->rest;
  Optimizer result = optimizer;
  if (auto* adafactor = std::get_if<Adafactor>(&result)) adafactor->factored = info.shape.size() >= 2;
  return result;
}

void set_weight_decay(Optimizer& optimizer, double weight_decay) {
  std::visit(
      [&](auto& value) {
        if constexpr (requires { value.weight_decay; }) {
          value.weight_decay = weight_decay;
        } else {
          throw ConfigError("a group has a weight_decay, but " + std::string(name_of(value)) + " has one of its own",
                            "give the group an optimizer instead");
        }
      },
      optimizer);
}

ParameterRule rule_of(const Optimizer& optimizer, const std::vector<ParamGroup>& groups, const ParameterInfo& info) {
  for (const ParamGroup& group : groups) {
    if (!group.takes || !group.takes(info)) continue;  // without: told of below
    ParameterRule rule{for_parameter(group.optimizer.value_or(optimizer), info), group.lr_scale, info.shape};
    if (group.weight_decay) set_weight_decay(rule.optimizer, *group.weight_decay);
    return rule;
  }
  return {for_parameter(optimizer, info), 1.0, info.shape};
}

}  // namespace

int moments(const Optimizer& optimizer) {
  return std::visit([](const auto& value) { return moments_of(value); }, optimizer);
}

MomentFormat moment_format(const Optimizer& optimizer) {
  return std::visit(
      [](const auto& value) {
        if constexpr (requires { value.format; }) return value.format;
        return MomentFormat::wide;
      },
      optimizer);
}

double first_moment(const Optimizer& optimizer) {
  const auto* adagrad = std::get_if<AdaGrad>(&optimizer);
  return adagrad == nullptr ? 0 : adagrad->initial_accumulator_value;
}

double learning_rate(const Optimizer& optimizer) {
  return std::visit([](const auto& value) { return value.lr; }, optimizer);
}

double weight_decay(const Optimizer& optimizer) {
  return std::visit(
      [](const auto& value) -> double {
        if constexpr (requires { value.weight_decay; }) return value.weight_decay;
        return 0;
      },
      optimizer);
}

std::string_view name(const Optimizer& optimizer) {
  return std::visit([](const auto& value) { return name_of(value); }, optimizer);
}

std::string describe(const Optimizer& optimizer) {
  Fields fields{{"lr", learning_rate(optimizer)}, {"weight_decay", weight_decay(optimizer)}};
  const Fields own = std::visit([](const auto& value) { return fields_of(value); }, optimizer);
  fields.insert(fields.end(), own.begin(), own.end());
  std::string text(name(optimizer));
  for (const auto& [field, value] : fields) text += std::string(" ") + field + " " + shortest(value);
  return text;
}

std::vector<std::string> faults(const Optimizer& optimizer) {
  OptimizerFaults found(name(optimizer));
  found.not_negative("lr", learning_rate(optimizer));
  found.not_negative("weight_decay", weight_decay(optimizer));
  std::visit([&](const auto& value) { found.fields(value); }, optimizer);
  return std::move(found).faults();
}

std::vector<ParameterRule> parameter_rules(const Optimizer& optimizer, const std::vector<ParamGroup>& groups,
                                           const std::vector<ParameterInfo>& infos) {
  std::vector<ParameterRule> result;
  std::map<std::string, std::string> first;  // parameter, by fault
  for (const std::string& fault : faults(optimizer)) first.emplace(fault, "");
  for (const ParamGroup& group : groups)
    if (!group.takes) first.emplace("a ParamGroup without a function `takes`", "");
  for (const ParameterInfo& info : infos) {
    result.push_back(rule_of(optimizer, groups, info));
    for (const std::string& fault : faults(result.back().optimizer)) first.emplace(fault, info.name);
    if (!std::isfinite(result.back().lr_scale)) first.emplace("lr_scale must be a number", info.name);
  }
  std::string text;
  for (const auto& [fault, parameter] : first)
    text += (text.empty() ? "" : "; ") + fault + (parameter.empty() ? "" : " (parameter '" + parameter + "')");
  if (!text.empty()) throw ConfigError("no optimizer: " + text);
  return result;
}

bool hidden_matrix(const ParameterInfo& info) {
  if (info.shape.size() != 2 || info.embedding) return false;
  static const std::set<std::string, std::less<>> outputs{"head",    "lm_head",    "output",        "output_layer",
                                                          "unembed", "classifier", "lm_projection", "logits"};
  std::vector<std::string> path;  // of modules, and the parameter's own name
  for (std::istringstream parts(info.name); std::getline(parts, path.emplace_back(), '.');) continue;
  path.pop_back();
  const auto number = [](const std::string& part) { return !part.empty() && std::ranges::all_of(part, ::isdigit); };
  const bool in_a_numbered_layer = std::ranges::any_of(path, number);
  return in_a_numbered_layer || path.size() < 2 || !outputs.contains(path[path.size() - 2]);
}

ParamGroup no_decay_on_norms_biases_embeddings() {
  const auto takes = [](const ParameterInfo& info) { return info.shape.size() <= 1 || info.embedding; };
  return {.takes = takes, .weight_decay = 0.0};
}

}  // namespace zero
