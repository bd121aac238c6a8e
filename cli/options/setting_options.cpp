#include "cli/options/setting_options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <filesystem>

#include "base/text.h"
#include "cli/options/validators.h"
#include "models/llama_config.h"
#include "planner/plan_file.h"
#include "planner/quantity.h"

namespace cli {
namespace {

using zero::PlanSetting;
using zero::SettingValue;

// Among what else says how computing is done.
constexpr std::array<std::string_view, 3> kElsewhere{"precision", "accumulate", "reproducible"};

std::string option_of(const PlanSetting& setting) {
  return zero::option_named(setting.name);
}

std::vector<std::string> choices_of(const PlanSetting& setting) {
  return setting.choices == nullptr ? std::vector<std::string>() : texts(setting.choices());
}

std::int64_t number_of(const PlanSetting& setting, const std::string& given) try {
  if (setting.bytes) return planner::bytes_of(given, setting.least);
  const auto read = zero::read_number<std::int64_t>(given, setting.least, setting.most);
  if (!read.fault.empty()) throw zero::ConfigError(read.fault);
  return read.value;
} catch (const zero::ConfigError& error) {
  throw UsageError(option_of(setting) + ": " + error.what());
}

// Whether it is of the kind that the value has.
bool read(const PlanSetting& setting, const std::string& given, SettingValue& value) {
  if (bool* const on = std::get_if<bool>(&value)) return CLI::detail::lexical_cast(given, *on);
  value = std::holds_alternative<std::string>(value) ? SettingValue(given) : number_of(setting, given);
  return true;
}

class Taking {
 public:
  Taking(const CLI::App& command, RunOptions& options)
      : command_(command), options_(options), source_("the plan file " + zero::shown(options.plan_file)) {}

  void take(const planner::PlanFile& file) {
    options_.plans = {file.plan};
    options_.settings = agreed(options_.settings, file.settings, source_);
    take("--optimizer", options_.optimizer, file.optimizer);
    take("--ranks", options_.ranks, file.ranks);
    take("--shard-ranks", options_.shard_ranks, file.shard_ranks);
    take("--tensor", options_.tensor, file.tensor);
    if (file.model.empty() && command_.count("--model") == 0)
      throw UsageError(
          "--plan: the plan file names no model, since it was made from a number of parameters: give --model");
    if (!file.model.empty()) take("--model", options_.model, file.model);
    take("--batch", options_.batch, file.batch);
    take("--seq", options_.seq, file.seq);
    take("--recompute", options_.recompute, file.recompute);
    take("--loss-pieces", options_.loss_pieces, file.loss_pieces);
  }

 private:
  template <class T>
  void take(const char* option, T& into, const T& value) {
    if (into == value) return;
    if (command_.count(option) > 0) contradict(option, text(into), source_, text(value));
    into = value;
    options_.given.emplace_back(option, text(value));
  }

  const CLI::App& command_;
  RunOptions& options_;
  std::string source_;
};

}  // namespace

CLI::Option* add_setting(CLI::App& command, zero::PlanSettings& settings, std::string_view name,
                         const std::string& group, const std::string& help) {
  const PlanSetting& setting = zero::plan_setting(name);
  const SettingValue usual = setting.get({});
  const bool number = std::holds_alternative<std::int64_t>(usual);
  const std::vector<std::string> choices = choices_of(setting);
  const std::string words = help.empty() ? std::string(setting.help) : help;
  const auto set = [&settings, &setting](const CLI::results_t& given) {
    return read(setting, given.front(), settings.said(setting.name));
  };
  CLI::Option* const option =
      command.add_option(option_of(setting), set, choices.empty() ? words : with_choices(words, choices))->group(group);
  if (std::holds_alternative<bool>(usual))
    return option->multi_option_policy(CLI::MultiOptionPolicy::TakeLast)->expected(0);
  option->default_str(help.empty() ? zero::text_of(usual) : "");
  if (number) return option->type_name(setting.bytes ? "SIZE" : "INT");
  option->type_name(std::string(setting.form));
  if (!choices.empty()) return option->check(choice(choices));
  return option->check(read_by([&setting](const std::string& given) { return setting.set({}, given); }))->join(',');
}

void add_exchange_options(CLI::App& command, SharedOptions& options, const std::string& group) {
  add_number(command, "--shard-ranks", options.shard_ranks,
             "Ranks of a shard group, such as those of a host, inside which hybrid plans shard [all]", 1, kMostRanks)
      ->default_str("")
      ->group(group);
  add_number(command, "--tensor", options.tensor,
             "Ranks of the tensor axis, which have a part each of every layer, and one batch", 1, kMostRanks)
      ->group(group);
  for (const PlanSetting& each : zero::plan_settings())
    if (!std::ranges::count(kElsewhere, each.name)) add_setting(command, options.settings, each.name, group);
}

void add_activation_options(CLI::App& command, SharedOptions& options, const std::string& group) {
  add_choice(command, "--recompute", options.recompute,
             "What backward computes again: nothing, each layer, or its SwiGLU alone", texts(models::recomputes()))
      ->group(group);
  add_number(command, "--loss-pieces", options.loss_pieces,
             "Of the tokens, of which the loss takes one after the other: less memory for a large vocabulary", 1,
             models::kMostLossPieces)
      ->group(group);
}

bool is_setting(std::string_view option) {
  return std::ranges::count(zero::plan_settings(), option, option_of) > 0;
}

void contradict(const std::string& option, const std::string& given, const std::string& source,
                const std::string& read) {
  throw UsageError(option + " " + given + " contradicts " + source + ", which says " + read);
}

zero::PlanSettings agreed(const zero::PlanSettings& given, const zero::PlanSettings& read, const std::string& source) {
  zero::PlanSettings both = given;
  for (const PlanSetting& each : zero::plan_settings()) {
    if (!read.says(each.name)) continue;
    const SettingValue other = read[each.name];
    if (other == SettingValue(true)) both.set(each.name, other);
    if (std::holds_alternative<bool>(other)) continue;
    if (given.says(each.name) && given[each.name] != other)
      contradict(option_of(each), given.text(each.name), source, zero::text_of(other));
    both.set(each.name, other);
  }
  return both;
}

std::vector<std::string> arguments_of(const zero::PlanSettings& settings) {
  std::vector<std::string> words;
  for (const PlanSetting& each : zero::plan_settings()) {
    const SettingValue value = settings[each.name];
    const auto* const word = std::get_if<std::string>(&value);
    const bool chooses = word != nullptr && !word->empty();  // where a preset may choose otherwise
    if (!settings.says(each.name) || (value == each.get({}) && !chooses)) continue;
    const std::string written = std::holds_alternative<bool>(value) ? "" : "=" + zero::text_of(value);
    words.push_back(option_of(each) + written + (each.bytes ? "B" : ""));
  }
  return words;
}

void take_plan_file(const CLI::App& command, RunOptions& options) {
  const std::string name = options.plans.front();
  const auto presets = zero::Plan::presets();
  if (std::ranges::find(presets, name) != presets.end()) return;
  std::error_code error;
  if (!std::filesystem::exists(name, error))
    throw UsageError("--plan: " + zero::in_quotes(name) + " is neither a preset (" + zero::joined(presets) +
                     ") nor a file" + zero::did_you_mean(name, texts(presets)));
  options.plan_file = name;
  Taking(command, options).take(planner::read_plan_file(name));
}

}  // namespace cli
