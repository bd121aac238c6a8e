#include "partition/plan_settings.h"

#include <algorithm>
#include <set>
#include <sstream>

#include "base/codec.h"
#include "base/number.h"
#include "base/text.h"
#include "zero/error.h"

namespace zero {
namespace {

constexpr std::array kReductions{Wire::fp32, Wire::bf16, Wire::fp16, Wire::bf16_codes,
                                 Wire::fp8,  Wire::int8, Wire::int4, Wire::int4_hadamard};

bool flag(const SettingValue& value) {
  return std::get<bool>(value);
}
std::int64_t number(const SettingValue& value) {
  return std::get<std::int64_t>(value);
}
const std::string& word(const SettingValue& value) {
  return std::get<std::string>(value);
}

std::vector<std::string_view> reductions() {
  std::vector<std::string_view> names;
  for (const Wire wire : kReductions) names.push_back(name(wire));
  return names;
}

std::string reduction_of(const Plan& plan) {
  const Wire wire = plan[State::gradient].wire;
  return wire == Wire::native ? "" : std::string(name(wire));
}

Plan with_reduction(const Plan& plan, const std::string& text) {
  if (text.empty()) return plan.reduce_in(Wire::native);
  for (const Wire wire : kReductions)
    if (name(wire) == text) return plan.reduce_in(wire);
  throw ConfigError("gradients cannot be reduced in " + in_quotes(text), "one of " + joined(reductions()));
}

// Of so many bits; 0: any.
std::vector<std::string_view> codecs_of(int bits) {
  std::vector<std::string_view> names{name(Wire::native)};
  const auto take = [&](Wire wire) {
    if (bits == 0 || bits_of(wire) == bits) names.push_back(name(wire));
  };
  std::apply([&](auto... codec) { (take(decltype(codec)::kWire), ...); }, Codecs());
  return names;
}

std::vector<std::string_view> codecs() {
  return codecs_of(0);
}

std::vector<std::string_view> codecs_of_activations() {
  return codecs_of(8);
}

Wire wire_named(const std::string& what, const std::string& text) {
  std::vector<std::string_view> names;
  for (int i = 0; i <= static_cast<int>(Wire::bf16_codes); ++i) {
    names.push_back(name(static_cast<Wire>(i)));
    if (names.back() == text) return static_cast<Wire>(i);
  }
  throw ConfigError(what + in_quotes(text), "one of " + joined(names));
}

std::vector<std::string_view> kept_copies() {
  return {name(KeptCopy::none), name(KeptCopy::shard), name(KeptCopy::host)};
}

constexpr std::array<PlanSetting, 13> kSettings{{
    {.name = "precision",
     .help = "fp32; bf16, fp16 or fp8 (in linear layers) with fp32 main weights; bf16 without, rounded at random (sr), "
             "with a remainder (kahan), or neither (pure)",
     .get = [](const Plan& plan) -> SettingValue { return std::string(name(plan.precision())); },
     .set = [](const Plan& plan, const SettingValue& to) { return plan.precision(precision_named(word(to))); },
     .choices = precisions,
     .told = false},
    {.name = "accumulate",
     .help = "Micro-batches of a step, on each rank",
     .get = [](const Plan& plan) -> SettingValue { return std::int64_t{plan.accumulate()}; },
     .set = [](const Plan& plan, const SettingValue& to) { return plan.accumulate(static_cast<int>(number(to))); },
     .least = 1,
     .most = std::numeric_limits<int>::max()},
    {.name = "reproducible",
     .help = "The same bits for every split of the batch",
     .get = [](const Plan& plan) -> SettingValue { return plan.reproducible(); },
     .set = [](const Plan& plan, const SettingValue& to) { return plan.reproducible(flag(to)); },
     .words = [](const Plan& plan) { return std::string(plan.reproducible() ? "reproducible sums" : "running sums"); }},
    {.name = "resident_budget",
     .help = "Bytes for gathered parameters: 500M, 2GiB; 0 is two units, three over several hosts or from other tiers",
     .get = [](const Plan& plan) -> SettingValue { return plan.resident_budget(); },
     .set = [](const Plan& plan, const SettingValue& to) { return plan.resident_budget(number(to)); },
     .bytes = true,
     .told = false},
    {.name = "overlap",
     .help = "Units whose parameters are gathered ahead, and whose gradients are reduced, beside computing and beside "
             "each other; 0 is 2 over several hosts, else 1",
     .get = [](const Plan& plan) -> SettingValue { return std::int64_t{plan.overlap()}; },
     .set = [](const Plan& plan, const SettingValue& to) { return plan.overlap(static_cast<int>(number(to))); },
     .least = 0,
     .most = Plan::kMostOverlap},
    {.name = "activation_budget",
     .help = "For activations of a micro-batch: 2GiB, or 50% of what they take without; what is dropped is computed "
             "again, with the same bits",
     .get = [](const Plan& plan) -> SettingValue { return plan.activation_budget().text(); },
     .set = [](const Plan& plan,
               const SettingValue& to) { return plan.activation_budget(ActivationBudget::named(word(to))); },
     .form = "BYTES|SHARE%",
     .told = false},
    {.name = "activations_in",
     .help = "What products keep for backward within that budget: as it is, or in 8 bits",
     .get = [](const Plan& plan) -> SettingValue { return std::string(name(plan[State::activation].wire)); },
     .set =
         [](const Plan& plan, const SettingValue& to) {
           return plan.activations_in(wire_named("activations cannot be kept in ", word(to)));
         },
     .choices = codecs_of_activations,
     .told = false},
    {.name = "reduce_in",
     .help = "What gradients travel in [their own dtype]: a dtype; or as they are inside shard groups, and across in "
             "codes of 16, 8 or 4 bits",
     .get = [](const Plan& plan) -> SettingValue { return reduction_of(plan); },
     .set = [](const Plan& plan, const SettingValue& to) { return with_reduction(plan, word(to)); },
     .choices = reductions,
     .words =
         [](const Plan& plan) {
           const std::string dtype = reduction_of(plan);
           return "gradients reduced in " + (dtype.empty() ? "their own dtype" : dtype);
         }},
    {.name = "error_feedback",
     .help = "What codes round off gradients where they cross is kept, and sent with the next ones",
     .get = [](const Plan& plan) -> SettingValue { return plan.error_feedback(); },
     .set = [](const Plan& plan, const SettingValue& to) { return plan.error_feedback(flag(to)); },
     .label = "error feedback"},
    {.name = "gather_in",
     .help = "How sharded parameters travel: as they are, or in codes of 16, 8 or 4 bits, themselves or what they "
             "differ by from what was gathered before (keep_gathered)",
     .get = [](const Plan& plan) -> SettingValue { return std::string(name(plan[State::parameter].wire)); },
     .set = [](const Plan& plan,
               const SettingValue& to) { return plan.gather_in(wire_named("parameters cannot travel as ", word(to))); },
     .choices = codecs,
     .told = false},
    {.name = "keep_gathered",
     .help = "What stays of gathered parameters until the update, so that only a step's first gather crosses shard "
             "groups: each rank's slice in its group (shard), or all of it once in the group's memory (host)",
     .get = [](const Plan& plan) -> SettingValue { return std::string(name(plan.kept())); },
     .set = [](const Plan& plan, const SettingValue& to) { return plan.keep_gathered(kept_copy_named(word(to))); },
     .choices = kept_copies,
     .told = false},
    {.name = "offload",
     .help = "States that are kept elsewhere, between commas: parameter=disk, gradient=host, optimizer=host, or a "
             "share: optimizer=host:0.8; within a budget also activation=disk",
     .get = [](const Plan& plan) -> SettingValue { return offload_of(plan); },
     .set = [](const Plan& plan, const SettingValue& to) { return offloaded(plan, word(to)); },
     .form = "STATE=TIER",
     .told = false},
    {.name = "delay_update",
     .help = "Update beside the next step, which computes with the parameters of the step before",
     .get = [](const Plan& plan) -> SettingValue { return plan.delays_update(); },
     .set = [](const Plan& plan, const SettingValue& to) { return plan.delay_update(flag(to)); },
     .label = "delayed update"},
}};

constexpr std::array kTieredStates{State::optimizer, State::gradient, State::parameter, State::activation};

double share_in(const std::string& part, const std::string& text) {
  const auto read = read_number<double>(text, 0, 1);
  if (!read.fault.empty())
    throw ConfigError("the share in " + in_quotes(part) + ": " + read.fault,
                      "write STATE=TIER:SHARE, as in optimizer=host:0.8");
  return read.value;
}

}  // namespace

std::string option_named(std::string_view setting) {
  std::string option = "--" + std::string(setting);
  std::ranges::replace(option, '_', '-');
  return option;
}

std::span<const PlanSetting> plan_settings() {
  return kSettings;
}

const PlanSetting& plan_setting(std::string_view name) {
  const auto found = std::ranges::find(kSettings, name, &PlanSetting::name);
  if (found == kSettings.end()) throw ConfigError("a plan has no setting " + in_quotes(name));
  return *found;
}

std::string text_of(const SettingValue& value) {
  if (const bool* const on = std::get_if<bool>(&value)) return *on ? "on" : "off";
  const std::int64_t* const count = std::get_if<std::int64_t>(&value);
  return count != nullptr ? std::to_string(*count) : word(value);
}

std::string words_of(const PlanSetting& setting, const Plan& plan) {
  return setting.words != nullptr ? setting.words(plan) : std::string(setting.name) + " " + text_of(setting.get(plan));
}

PlanSettings::PlanSettings(const Plan& plan) {
  for (const PlanSetting& each : kSettings) set(each.name, each.get(plan));
}

SettingValue PlanSettings::operator[](std::string_view name) const {
  const auto found = said_.find(name);
  return found != said_.end() ? found->second : plan_setting(name).get({});
}

Plan PlanSettings::plan(Plan preset) const {
  for (const auto& [name, value] : said_) preset = plan_setting(name).set(preset, value);
  return preset;
}

bool PlanSettings::operator==(const PlanSettings& other) const {
  return std::ranges::all_of(kSettings,
                             [&](const PlanSetting& each) { return (*this)[each.name] == other[each.name]; });
}

Plan offloaded(Plan plan, const std::string& text) {
  for (const State state : kTieredStates) plan = plan.offload(state, Tier::device);
  std::istringstream parts(text);
  std::set<State> said;
  for (std::string part; std::getline(parts, part, ',');) {
    const std::size_t equals = part.find('=');
    if (equals == std::string::npos)
      throw ConfigError(in_quotes(part) + " says no tier", "write STATE=TIER, as in optimizer=disk");
    const std::size_t colon = part.find(':', equals);
    const State state = state_named(part.substr(0, equals));
    if (!said.insert(state).second)
      throw ConfigError("the " + std::string(name(state)) + " has two tiers in " + in_quotes(text),
                        "name each state once");
    const double share = colon == std::string::npos ? 1 : share_in(part, part.substr(colon + 1));
    plan = plan.offload(state, tier_named(part.substr(equals + 1, colon - equals - 1)), share);
  }
  return plan;
}

std::string offload_of(const Plan& plan) {
  std::string text;
  for (const State state : kTieredStates)
    if (const Row& row = plan[state]; row.tier != Tier::device)
      text += (text.empty() ? "" : ",") + std::string(name(state)) + "=" + std::string(name(row.tier)) +
              (row.share == 1 ? "" : ":" + shortest(row.share));
  return text;
}

}  // namespace zero
