// The settings of a plan, a row for each: an option of the program, a key of its files, an argument in Python, and what
// ranks have to have in common. A setting that is added is a row. No torch.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <limits>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "zero/plan.h"

namespace zero {

// A flag, a number, or a text. An empty text leaves it to the plan.
using SettingValue = std::variant<bool, std::int64_t, std::string>;

struct PlanSetting {
  // How ranks say what they have of it, where they are compared.
  using Words = std::string (*)(const Plan& plan);

  std::string_view name;  // "delay_update"; as an option "--delay-update"
  std::string_view help;
  SettingValue (*get)(const Plan& plan);
  // Throws ConfigError for a value that there is not.
  Plan (*set)(const Plan& plan, const SettingValue& value);
  std::vector<std::string_view> (*choices)() = nullptr;                     // of the texts that have some
  std::string_view form = "TEXT";                                           // of other texts
  bool bytes = false;                                                       // a number of them
  std::int64_t least = 0, most = std::numeric_limits<std::int64_t>::max();  // of numbers
  std::string_view label = {};  // what a plan's label says where the flag is on; empty: nothing
  Words words = nullptr;        // none: name and value
  bool told = true;             // to the other ranks; not where the table's rows, or the label, tell them
};

// "--delay-update" of "delay_update".
std::string option_named(std::string_view setting);

std::span<const PlanSetting> plan_settings();
const PlanSetting& plan_setting(std::string_view name);
// "on" and "off" are those of flags.
std::string text_of(const SettingValue& value);
// What ranks have of it: "accumulate 2".
std::string words_of(const PlanSetting& setting, const Plan& plan);

// What is said of a plan's settings. What is not is as a preset has it.
class PlanSettings {
 public:
  PlanSettings() = default;
  PlanSettings(std::initializer_list<std::pair<const std::string, SettingValue>> said) : said_(said) {}
  // All, as the plan has them.
  explicit PlanSettings(const Plan& plan);

  bool says(std::string_view name) const { return said_.contains(name); }
  SettingValue operator[](std::string_view name) const;
  std::string text(std::string_view name) const { return text_of((*this)[name]); }
  void set(std::string_view name, SettingValue value) { said_[std::string(name)] = std::move(value); }
  // The value itself, from now on said.
  SettingValue& said(std::string_view name) {
    return said_.try_emplace(std::string(name), (*this)[name]).first->second;
  }
  void forget(std::string_view name) { said_.erase(std::string(name)); }

  // A preset with them. Throws ConfigError for a value that there is not.
  Plan plan(Plan preset = {}) const;

  // Whether they make the same plans.
  bool operator==(const PlanSettings& other) const;

 private:
  std::map<std::string, SettingValue, std::less<>> said_;
};

// As they are worth it: an optimizer's state is the largest, and is touched once a step.
inline constexpr std::array kOffloadOrder{State::optimizer, State::gradient, State::parameter};

// The plan with states on the tiers that a text says: "optimizer=disk,gradient=disk", or a share of one,
// "optimizer=host:0.8"; the others on the device. Throws ConfigError for another text.
Plan offloaded(Plan plan, const std::string& text);
// What says it of this plan.
std::string offload_of(const Plan& plan);

}  // namespace zero
