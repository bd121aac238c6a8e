#include "plan_command.h"

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <set>

#include "complain.h"
#include "files.h"
#include "model.h"
#include "places.h"
#include "plan_report.h"
#include "planner/fit.h"
#include "planner/plan_file.h"
#include "planner/quantity.h"
#include "recipe.h"
#include "report.h"
#include "validators.h"

namespace cli {
namespace {

// What the options leave open is as DeepSpeed's configuration says, or has its default.
struct Setting {
  std::vector<std::string> plans;
  std::string precision;
  std::string optimizer;
  std::int64_t batch = 0;
  int accumulate = 0;
};

// Both may say it, if they say the same.
template <class T>
std::optional<T> agreed(const char* option, const std::optional<T>& given, const std::optional<T>& read) {
  if (given && read && *given != *read)
    throw UsageError(std::string(option) + " " + text(*given) + " contradicts --ds-config, which says " + text(*read));
  return given ? given : read;
}

PlanOptions with(PlanOptions options, const planner::DeepSpeed& read) {
  options.batch = agreed("--batch", options.batch, read.batch);
  options.accumulate = agreed("--accumulate", options.accumulate, read.accumulate);
  options.precision = agreed("--precision", options.precision, read.precision);
  options.optimizer = agreed("--optimizer", options.optimizer, read.optimizer);
  const auto reduce_in = options.reduce_in.empty() ? std::nullopt : std::optional(options.reduce_in);
  options.reduce_in = agreed("--reduce-in", reduce_in, read.reduce_in).value_or("");
  if (read.plan && !options.plans.empty() && !std::ranges::count(options.plans, *read.plan))
    throw UsageError("--plans contradicts --ds-config, which says " + *read.plan);
  if (options.plans.empty() && read.plan) options.plans = {*read.plan};
  return options;
}

// Of equal ones, the first.
void keep_first(std::vector<std::string>& names) {
  std::set<std::string> seen;
  std::erase_if(names, [&](const std::string& each) { return !seen.insert(each).second; });
}

Setting setting_of(const PlanOptions& options) {
  Setting setting{.plans = options.plans,
                  .precision = options.precision.value_or("bf16"),
                  .optimizer = options.optimizer.value_or(RunOptions{}.optimizer),
                  .batch = options.batch.value_or(RunOptions{}.batch),
                  .accumulate = options.accumulate.value_or(RunOptions{}.accumulate)};
  if (setting.plans.empty())
    for (const std::string_view preset : zero::Plan::presets()) setting.plans.emplace_back(preset);
  keep_first(setting.plans);
  return setting;
}

planner::Shape shape_of(const PlanOptions& options) {
  if (!options.parameters.empty()) return planner::shape_of(planner::parameters_of(options.parameters));
  if (options.model.empty()) throw UsageError("plan: give --model or --parameters");
  return planner::shape_of(load_model(options.model));
}

RunOptions run_options(const PlanOptions& options, const Setting& setting) {
  RunOptions run;
  run.precision = setting.precision;
  run.optimizer = setting.optimizer;
  run.accumulate = setting.accumulate;
  run.reproducible = options.reproducible;
  static_cast<ExchangeOptions&>(run) = options;
  return run;
}

// Ranks of this machine share memory, and what they can do may have been measured; devices of their own do not.
bool here(const PlanOptions& options) {
  return options.hosts == 1 && options.device_memory.empty();
}

// What travels in FP8 is not read where it lies.
zero::Memory memory_of(const PlanOptions& options) {
  const bool as_it_lies = options.gather_in == "native";
  if (options.memory == "common" && !as_it_lies)
    throw UsageError("--memory common contradicts --gather-in " + options.gather_in + ": what travels is not common");
  const bool common = options.memory == "common" || (options.memory == "auto" && here(options) && as_it_lies);
  return common ? zero::Memory::common : zero::Memory::separate;
}

planner::Profile profile_of(const PlanOptions& options, zero::Precision precision) {
  if (!options.profile.empty()) return planner::profile_named(options.profile);
  const std::string measured = planner::usual_profile_path();
  std::error_code error;
  if (here(options) && std::filesystem::exists(measured, error)) {
    planner::Profile profile = planner::profile_named(measured);
    if (profile.knows(precision)) return profile;
  }
  return planner::profile_named("h100");
}

planner::Request request_of(const PlanOptions& options, const Setting& setting) {
  if (options.ranks % options.hosts != 0)
    throw UsageError("--hosts: " + std::to_string(options.ranks) + " ranks do not divide among " +
                     std::to_string(options.hosts) + " hosts");
  const RunOptions run = run_options(options, setting);
  planner::Request request{.shape = shape_of(options),
                           .ranks = options.ranks,
                           .hosts = options.hosts,
                           .batch = setting.batch,
                           .seq = options.seq,
                           .optimizer = make_optimizer(run),
                           .memory = memory_of(options),
                           .profile = profile_of(options, zero::precision_named(setting.precision))};
  if (!options.device_memory.empty()) request.device_memory = planner::bytes_of(options.device_memory);
  for (const std::string& each : setting.plans) request.plans.push_back(make_plan(run, each, options.ranks));
  return request;
}

// The plans that fit first, in order.
void reorder(planner::Answer& answer) {
  std::vector<std::size_t> order = planner::ranking(answer.costs);
  for (std::size_t i = 0; i < answer.costs.size(); ++i)
    if (!answer.costs[i].fits()) order.push_back(i);
  planner::Answer ordered = answer;
  for (std::size_t place = 0; place < order.size(); ++place) {
    ordered.costs[place] = answer.costs[order[place]];
    ordered.reach[place] = answer.reach[order[place]];
  }
  answer = std::move(ordered);
}

planner::PlanFile plan_file_of(const PlanOptions& options, const Setting& setting, const zero::Plan& chosen) {
  return {.plan = chosen.label(),
          .precision = setting.precision,
          .accumulate = setting.accumulate,
          .reproducible = options.reproducible,
          .resident_budget = chosen.resident_budget(),
          .reduce_in = options.reduce_in,
          .gather_in = options.gather_in,
          .optimizer = setting.optimizer,
          .ranks = options.ranks,
          .model = options.model,
          .batch = setting.batch,
          .seq = options.seq};
}

int fit(const PlanOptions& options, const Setting& setting, const planner::Answer& answer, std::ostream* text) {
  if (text) print_fit(*text, answer);
  if (!answer.costs.front().fits()) {
    if (text) *text << "\nNo plan fits.\n";
    if (!text) complain("no plan fits");
    return 1;
  }
  const zero::Plan& chosen = answer.costs.front().plan;
  write_file(options.out, to_json(plan_file_of(options, setting, chosen)));
  if (text) *text << "\nWrote " << options.out << ": " << chosen.label() << ".\n";
  return 0;
}

void check_outputs(const PlanOptions& options) {
  const std::string out = options.fit ? options.out : "";
  const auto file = [](const std::string& name, const auto& presets) {
    return std::ranges::count(presets, name) ? std::string() : name;
  };
  check_apart({{"--model", file(options.model, models::llama_presets()), Place::Use::reads},
               {"--profile", file(options.profile, planner::given_profiles()), Place::Use::reads},
               {"--ds-config", options.ds_config, Place::Use::reads},
               {"--json", options.json, Place::Use::writes},
               {"--out", out, Place::Use::writes}});
  for (const std::string& path : {options.json, out})
    if (!path.empty()) check_writable(path);
}

}  // namespace

int plan(const PlanOptions& given) {
  check_outputs(given);
  std::optional<planner::DeepSpeed> read;
  if (!given.ds_config.empty())
    read = planner::read_deepspeed(given.ds_config, given.ranks, {given.batch, given.accumulate});
  const PlanOptions options = read ? with(given, *read) : given;
  const Setting setting = setting_of(options);
  planner::Answer answer = planner::answer(request_of(options, setting), options.model, setting.optimizer);
  answer.deepspeed = std::move(read);
  if (options.fit) reorder(answer);
  const bool other = is_standard_output(options.json) || (options.fit && is_standard_output(options.out));
  std::ostream* const text = other ? nullptr : &std::cout;
  if (text) print_plans(*text, answer);
  const int code = options.fit ? fit(options, setting, answer, text) : 0;
  if (!options.json.empty()) write_file(options.json, planner::to_json(answer));
  return code;
}

}  // namespace cli
