#include "cli/report/run_setting.h"

#include <nlohmann/json.hpp>

namespace cli {
namespace {

void each_field(const auto& visit) {
  visit("seed", &RunSetting::seed);
  visit("steps", &RunSetting::steps);
  visit("schedule", &RunSetting::schedule);
  visit("warmup", &RunSetting::warmup);
  visit("clip", &RunSetting::clip);
  visit("data", &RunSetting::data);
  visit("tokens", &RunSetting::tokens);
  visit("threads", &RunSetting::threads);
  visit("device", &RunSetting::device);
  visit("reproducible", &RunSetting::reproducible);
  visit("fp32_norms", &RunSetting::fp32_norms);
  visit("loss_scale", &RunSetting::loss_scale);
  visit("fp8_scaling", &RunSetting::fp8_scaling);
  visit("reduce_in", &RunSetting::reduce_in);
  visit("gather_in", &RunSetting::gather_in);
  visit("offload", &RunSetting::offload);
  visit("delay_update", &RunSetting::delay_update);
  visit("shard_ranks", &RunSetting::shard_ranks);
  visit("resident_budget", &RunSetting::resident_budget);
  visit("eval_every", &RunSetting::eval_every);
}

}  // namespace

void write_setting(const RunSetting& setting, nlohmann::ordered_json& json) {
  each_field([&](const char* key, auto member) { json[key] = setting.*member; });
}

RunSetting read_setting(const nlohmann::ordered_json& json) {
  RunSetting setting;
  each_field([&](const char* key, auto member) {
    if (json.contains(key)) json.at(key).get_to(setting.*member);
  });
  return setting;
}

}  // namespace cli
