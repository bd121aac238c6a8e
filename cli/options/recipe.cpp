#include "cli/options/recipe.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "base/text.h"

namespace cli {
namespace {

struct NamedOptimizer {
  std::string_view name;
  double lr;  // unless --lr says otherwise
  zero::Optimizer (*make)(double lr);
};

// Decoupled decay takes the same part of a weight in each of them.
constexpr std::array<NamedOptimizer, 14> kOptimizers{{
    {"adamw", 1e-3,
     [](double lr) -> zero::Optimizer { return zero::AdamW{.lr = lr, .beta2 = 0.95, .weight_decay = 0.1}; }},
    {"adamw-8bit", 1e-3,
     [](double lr) -> zero::Optimizer {
       return zero::AdamW{.lr = lr, .beta2 = 0.95, .weight_decay = 0.1, .format = zero::MomentFormat::block8};
     }},
    {"adamw-bf16", 1e-3,
     [](double lr) -> zero::Optimizer {
       return zero::AdamW{.lr = lr, .beta2 = 0.95, .weight_decay = 0.1, .format = zero::MomentFormat::bf16};
     }},
    {"amsgrad", 1e-3,
     [](double lr) -> zero::Optimizer {
       return zero::AdamW{.lr = lr, .beta2 = 0.95, .weight_decay = 0.1, .amsgrad = true};
     }},
    {"adam", 1e-3, [](double lr) -> zero::Optimizer { return zero::Adam{.lr = lr, .beta2 = 0.95}; }},
    {"lion", 1e-4, [](double lr) -> zero::Optimizer { return zero::Lion{.lr = lr, .weight_decay = 1}; }},
    {"muon", 2e-2,
     [](double lr) -> zero::Optimizer {
       const zero::AdamW rest{.lr = lr / 20, .beta2 = 0.95, .weight_decay = 0.1};
       return zero::Muon{.lr = lr, .weight_decay = 5e-3, .rest = rest};
     }},
    {"lamb", 1e-2,
     [](double lr) -> zero::Optimizer { return zero::Lamb{.lr = lr, .beta2 = 0.95, .weight_decay = 0.1}; }},
    {"adafactor", 1e-2, [](double lr) -> zero::Optimizer { return zero::Adafactor{.lr = lr}; }},
    {"rmsprop", 1e-3, [](double lr) -> zero::Optimizer { return zero::RmsProp{.lr = lr}; }},
    {"adagrad", 1e-2, [](double lr) -> zero::Optimizer { return zero::AdaGrad{.lr = lr}; }},
    {"momentum", 0.1, [](double lr) -> zero::Optimizer { return zero::Sgd{.lr = lr, .momentum = 0.9}; }},
    {"nesterov", 0.1,
     [](double lr) -> zero::Optimizer { return zero::Sgd{.lr = lr, .momentum = 0.9, .nesterov = true}; }},
    {"sgd", 0.5, [](double lr) -> zero::Optimizer { return zero::Sgd{.lr = lr}; }},
}};

// Settings of the plan that have places of their own in a report.
constexpr std::array<std::string_view, 4> kApart{"precision", "accumulate", "reproducible", "resident_budget"};

std::int64_t warmup(const RunOptions& o) {
  return o.warmup.value_or(o.steps / 10);
}

struct NamedSchedule {
  std::string_view name;
  zero::Schedule (*make)(const RunOptions& options);
};

constexpr std::array<NamedSchedule, 5> kSchedules{{
    {"cosine",
     [](const RunOptions& o) {
       return zero::cosine_schedule({warmup(o), o.steps});
     }},
    {"linear",
     [](const RunOptions& o) {
       return zero::linear_schedule({warmup(o), o.steps});
     }},
    {"constant", [](const RunOptions& o) { return zero::constant_schedule(warmup(o)); }},
    {"inverse-root", [](const RunOptions& o) { return zero::inverse_root_schedule(warmup(o)); }},
    {"stable-decay",
     [](const RunOptions& o) {
       return zero::stable_decay_schedule({warmup(o), o.steps}, o.steps / 5);
     }},
}};

std::vector<std::string> names(const auto& table) {
  std::vector<std::string> result;
  for (const auto& entry : table) result.emplace_back(entry.name);
  return result;
}

const auto& find(const auto& table, const std::string& name, const char* option) {
  const auto found = std::ranges::find_if(table, [&](const auto& entry) { return entry.name == name; });
  if (found == table.end())
    throw UsageError(std::string(option) + ": there is no " + zero::in_quotes(name) +
                     zero::did_you_mean(name, names(table)));
  return *found;
}

}  // namespace

std::vector<std::string> optimizer_names() {
  return names(kOptimizers);
}

std::vector<std::string> schedule_names() {
  return names(kSchedules);
}

zero::Optimizer make_optimizer(const std::string& name, std::optional<double> lr) {
  const NamedOptimizer& entry = find(kOptimizers, name, "--optimizer");
  return entry.make(lr.value_or(entry.lr));
}

zero::Optimizer make_optimizer(const RunOptions& options) {
  return make_optimizer(options.optimizer, options.lr);
}

zero::Schedule make_schedule(const RunOptions& options) {
  return find(kSchedules, options.schedule, "--schedule").make(options);
}

models::Json setting_of(const RunOptions& options) {
  models::Json json{{"seed", options.seed},      {"steps", options.steps},     {"schedule", options.schedule},
                    {"warmup", warmup(options)}, {"clip", options.clip},       {"data", options.data},
                    {"tokens", options.tokens},  {"threads", options.threads}, {"device", options.device}};
  const bool one = options.plans.size() == 1;  // whose preset may have chosen, too
  const zero::PlanSettings settings =
      one ? zero::PlanSettings(options.settings.plan(zero::Plan::named(options.plans.front()))) : options.settings;
  const auto add = [&](std::string_view name) {
    std::visit([&](const auto& value) { json[std::string(name)] = value; }, settings[name]);
  };
  add("reproducible");
  json.update(
      {{"fp32_norms", options.fp32_norms}, {"loss_scale", options.loss_scale}, {"fp8_scaling", options.fp8_scaling}});
  for (const zero::PlanSetting& each : zero::plan_settings())
    if (!std::ranges::count(kApart, each.name)) add(each.name);
  json["shard_ranks"] = options.shard_ranks;
  json["tensor"] = options.tensor;
  json["recompute"] = options.recompute;
  json["loss_pieces"] = options.loss_pieces;
  add("resident_budget");
  json["eval_every"] = options.eval_every;
  return json;
}

}  // namespace cli
