#include "zero/optimizer.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <sstream>
#include <tuple>
#include <utility>

#include "base/text.h"
#include "zero/error.h"

namespace zero {

namespace {

enum class Must : std::uint8_t { be_a_number, not_be_positive, not_be_negative, be_positive, be_a_fraction };

template <class Kind, class Value>
struct Field {
  const char* name;
  Value Kind::*value;
  std::optional<Must> must = {};
};
template <class Kind, class Value>
Field(const char*, Value Kind::*) -> Field<Kind, Value>;
template <class Kind, class Value>
Field(const char*, Value Kind::*, Must) -> Field<Kind, Value>;

// What an optimizer has beside its learning rate and weight decay, in the order in which it is described.
template <class Kind>
constexpr auto kFields = std::tuple{};
template <>
constexpr auto kFields<Sgd> =
    std::tuple{Field{"momentum", &Sgd::momentum, Must::not_be_negative},
               Field{"dampening", &Sgd::dampening, Must::be_a_number}, Field{"nesterov", &Sgd::nesterov}};
template <>
constexpr auto kFields<AdaGrad> =
    std::tuple{Field{"lr_decay", &AdaGrad::lr_decay, Must::not_be_negative},
               Field{"initial_accumulator_value", &AdaGrad::initial_accumulator_value, Must::not_be_negative},
               Field{"eps", &AdaGrad::eps, Must::not_be_negative}};
template <>
constexpr auto kFields<RmsProp> =
    std::tuple{Field{"alpha", &RmsProp::alpha, Must::be_a_fraction}, Field{"eps", &RmsProp::eps, Must::not_be_negative},
               Field{"momentum", &RmsProp::momentum, Must::not_be_negative}, Field{"centered", &RmsProp::centered},
               Field{"eps_inside_root", &RmsProp::eps_inside_root}};
template <class Kind>
constexpr auto kBetas =
    std::tuple{Field{"beta1", &Kind::beta1, Must::be_a_fraction}, Field{"beta2", &Kind::beta2, Must::be_a_fraction}};
template <>
constexpr auto kFields<Adam> = std::tuple_cat(kBetas<Adam>, std::tuple{Field{"eps", &Adam::eps, Must::not_be_negative},
                                                                       Field{"amsgrad", &Adam::amsgrad},
                                                                       Field{"moment format", &Adam::format}});
template <>
constexpr auto kFields<AdamW> = std::tuple_cat(
    kBetas<AdamW>, std::tuple{Field{"eps", &AdamW::eps, Must::not_be_negative}, Field{"amsgrad", &AdamW::amsgrad},
                              Field{"decay_by_lr", &AdamW::decay_by_lr}, Field{"moment format", &AdamW::format}});
template <>
constexpr auto kFields<Lion> = kBetas<Lion>;
template <>
constexpr auto kFields<Muon> =
    std::tuple{Field{"momentum", &Muon::momentum, Must::be_a_fraction}, Field{"nesterov", &Muon::nesterov},
               Field{"iterations", &Muon::iterations}, Field{"as_large_as_adamw", &Muon::as_large_as_adamw}};
template <>
constexpr auto kFields<Adafactor> =
    std::tuple{Field{"beta2_decay", &Adafactor::beta2_decay, Must::not_be_positive},
               Field{"eps_square", &Adafactor::eps_square, Must::be_positive},
               Field{"eps_step", &Adafactor::eps_step, Must::not_be_negative},
               Field{"clip", &Adafactor::clip, Must::be_positive}, Field{"factored", &Adafactor::factored}};
template <>
constexpr auto kFields<Lamb> = std::tuple_cat(kBetas<Lamb>,
                                              std::tuple{Field{"eps", &Lamb::eps, Must::not_be_negative}});

// Calls use(field, its value) for each.
template <class Kind, class Use>
void each_field(const Kind& optimizer, const Use& use) {
  std::apply([&](const auto&... field) { (use(field, static_cast<double>(optimizer.*(field.value))), ...); },
             kFields<Kind>);
}

// Collects sentences about one optimizer.
class OptimizerFaults {
 public:
  explicit OptimizerFaults(std::string_view name) : name_(name) {}

  void check(const char* what, double value, Must must) {
    const std::string number = std::string(what) + " must be a number";
    const auto but_is = [&](bool good, const char* rule) {
      sentence(good && std::isfinite(value), number + ", " + rule + ", but is " + shortest(value));
    };
    switch (must) {
      case Must::be_a_number: return sentence(std::isfinite(value), number);
      case Must::not_be_positive: return sentence(std::isfinite(value) && value <= 0, number + " that is not positive");
      case Must::not_be_negative: return but_is(value >= 0, "not negative");
      case Must::be_positive: return but_is(value > 0, "positive");
      case Must::be_a_fraction: return but_is(value >= 0 && value < 1, "in [0, 1)");
    }
  }

  // What concerns more than one number.
  void together(const Sgd& o) {
    sentence(!o.nesterov || (o.momentum > 0 && o.dampening == 0), "nesterov needs a momentum and no dampening");
  }
  void together(const Muon& o) {
    sentence(o.iterations >= 1 && o.iterations <= 100, "iterations must be in [1, 100]");
    sentence(static_cast<bool>(o.takes), "takes must be a function");
    for (const std::string& fault : zero::faults(Optimizer(o.rest))) sentence(false, "rest: " + fault);
  }
  void together(const TorchOptimizer& o) { sentence(static_cast<bool>(o.make), "make must be a function"); }

  std::vector<std::string> faults() && { return std::move(faults_); }

 private:
  void sentence(bool good, const std::string& text) {
    if (!good) faults_.push_back(name_ + ": " + text);
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
          throw ConfigError("a group has a weight_decay, but " + std::string(name(value)) + " has one of its own",
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
  return std::visit(
      []<class Kind>(const Kind& o) {
        if constexpr (std::is_same_v<Kind, Sgd>) return o.momentum != 0 ? 1 : 0;
        if constexpr (std::is_same_v<Kind, RmsProp>) return 1 + (o.momentum != 0 ? 1 : 0) + (o.centered ? 1 : 0);
        if constexpr (std::is_same_v<Kind, Adafactor>) return o.factored ? 0 : 1;
        if constexpr (std::is_same_v<Kind, TorchOptimizer>) return 0;
        if constexpr (requires { o.amsgrad; }) return o.amsgrad ? 3 : 2;
        return std::is_same_v<Kind, Lamb> ? 2 : 1;
      },
      optimizer);
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
  constexpr std::array<std::string_view, std::variant_size_v<Optimizer>> kNames{
      "adamw", "sgd", "adagrad", "rmsprop", "adam", "lion", "muon", "adafactor", "lamb", "torch"};
  if (const auto* sgd = std::get_if<Sgd>(&optimizer); sgd != nullptr && sgd->momentum != 0) return "momentum";
  if (const auto* torch = std::get_if<TorchOptimizer>(&optimizer)) return torch->label;
  return kNames.at(optimizer.index());
}

std::string describe(const Optimizer& optimizer) {
  std::string text(name(optimizer));
  const auto add = [&](const char* name, double value) { text += std::string(" ") + name + " " + shortest(value); };
  add("lr", learning_rate(optimizer));
  add("weight_decay", weight_decay(optimizer));
  std::visit([&](const auto& of) { each_field(of, [&](const auto& field, double value) { add(field.name, value); }); },
             optimizer);
  return text;
}

std::vector<std::string> faults(const Optimizer& optimizer) {
  OptimizerFaults found(name(optimizer));
  found.check("lr", learning_rate(optimizer), Must::not_be_negative);
  found.check("weight_decay", weight_decay(optimizer), Must::not_be_negative);
  std::visit(
      [&](const auto& of) {
        each_field(of, [&](const auto& field, double value) {
          if (field.must) found.check(field.name, value, *field.must);
        });
        if constexpr (requires { found.together(of); }) found.together(of);
      },
      optimizer);
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
