#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "cli/report/report.h"
#include "models/schema.h"

namespace cli {
namespace {

using Json = nlohmann::ordered_json;

double number(const Json& json) {
  return json.is_null() ? std::numeric_limits<double>::quiet_NaN() : json.get<double>();
}

std::vector<double> numbers(const Json& json) {
  std::vector<double> result;
  for (const Json& value : json) result.push_back(number(value));
  return result;
}

Json measured(std::int64_t bytes) {
  return bytes == kUnmeasured ? Json() : Json(bytes);
}

Json encode(const Bytes& bytes) {
  return {{"predicted", bytes.predicted}, {"measured", measured(bytes.measured)}};
}

Json encode(const WireBytes& bytes) {
  return {{"predicted", bytes.predicted},
          {"measured", bytes.measured},
          {"uneven", bytes.uneven},
          {"within_host", encode(bytes.within_host)},
          {"across_hosts", encode(bytes.across_hosts)},
          {"in_place", encode(bytes.in_place)}};
}

Bytes decode_bytes(const Json& json) {
  const Json& measured = json.at("measured");
  return {json.at("predicted"), measured.is_null() ? kUnmeasured : measured.get<std::int64_t>()};
}

WireBytes decode_wire(const Json& json) {
  return {json.at("predicted"),
          json.at("measured"),
          json.at("uneven"),
          decode_bytes(json.at("within_host")),
          decode_bytes(json.at("across_hosts")),
          decode_bytes(json.at("in_place"))};
}

Json encode(const TierBytes& tier) {
  return {{"tier", tier.tier},
          {"state", tier.state},
          {"bytes", encode(tier.held)},
          {"read_per_step", encode(tier.read)},
          {"written_per_step", encode(tier.written)},
          {"uneven", tier.uneven}};
}

TierBytes decode_tier(const Json& json) {
  return {json.at("tier"),
          json.at("state"),
          decode_bytes(json.at("bytes")),
          decode_bytes(json.at("read_per_step")),
          decode_bytes(json.at("written_per_step")),
          json.at("uneven")};
}

Json encode(const std::vector<Share>& shares) {
  Json list = Json::array();
  for (const Share& share : shares) list.push_back({{"name", share.name}, {"bytes", share.bytes}});
  return list;
}

std::vector<Share> decode_shares(const Json& json) {
  std::vector<Share> shares;
  for (const Json& each : json) shares.push_back({each.at("name"), each.at("bytes")});
  return shares;
}

Json encode_collectives(const std::vector<Share>& shares) {
  Json json = Json::object();
  for (const Share& share : shares) json[share.name] = share.bytes;
  return json;
}

Json encode(const Seconds& seconds) {
  return {{"compute", seconds.compute},
          {"gather", seconds.gather},
          {"reduce", seconds.reduce},
          {"update", seconds.update},
          {"wait", seconds.wait}};
}

Seconds decode_seconds(const Json& json) {
  return {number(json.at("compute")), number(json.at("gather")), number(json.at("reduce")), number(json.at("update")),
          number(json.at("wait"))};
}

Json encode(const planner::Theory& theory) {
  return {{"state", theory.state},
          {"state_bytes", theory.state_bytes},
          {"volume", theory.volume},
          {"volume_bytes", theory.volume_bytes}};
}

planner::Theory decode_theory(const Json& json) {
  return {json.at("state"), json.at("state_bytes"), json.at("volume"), json.at("volume_bytes")};
}

Json optional_number(const std::optional<double>& value) {
  return value ? Json(*value) : Json();
}

std::optional<double> decode_optional(const Json& json) {
  return json.is_null() ? std::nullopt : std::optional(json.get<double>());
}

Json encode(const RunResult& run) {
  Json evaluations = Json::array();
  for (const Evaluation& each : run.evaluations) evaluations.push_back({{"step", each.step}, {"loss", each.loss}});
  return {
      {"plan", run.plan},
      {"optimizer", run.optimizer_name},
      {"lr", run.lr},
      {"precision", run.precision},
      {"losses", run.losses},
      {"grad_norms", run.grad_norms},
      {"evaluations", evaluations},
      {"state_bytes",
       {{"parameter", encode(run.parameter)},
        {"gradient", encode(run.gradient)},
        {"optimizer", encode(run.optimizer)}}},
      {"activation_bytes", encode(run.activation)},
      {"buffer_bytes", encode(run.buffers)},
      {"peak", {{"predicted", run.peak.predicted}, {"measured", measured(run.peak.measured)}, {"moment", run.moment}}},
      {"wire_bytes_per_step", encode(run.wire)},
      {"wire_bytes_by_collective", encode_collectives(run.collectives)},
      {"peak_bytes", run.peak_bytes},
      {"process", encode(run.process)},
      {"process_bytes", run.process_bytes},
      {"steps_made", run.steps_made},
      {"update_bytes", run.update_bytes},
      {"update_seconds", optional_number(run.update_seconds)},
      {"seconds", encode(run.seconds)},
      {"step_seconds", run.step_seconds},
      {"predicted_step_seconds", optional_number(run.predicted_seconds)},
      {"profile", run.predicted_seconds ? Json(run.profile) : Json()},
      {"profile_estimated", run.profile_estimated},
      {"tokens_per_second", run.tokens_per_second},
      {"theory", encode(run.theory)}};
}

// With what is there of some runs only.
Json encode_all(const RunResult& run) {
  Json json = encode(run);
  for (const TierBytes& tier : run.tiers) json["tiers"].push_back(encode(tier));
  if (!run.timeline.empty()) json["timeline"] = Json::parse(run.timeline);
  return json;
}

// What comes with the state.
void decode_costs(const Json& json, RunResult& run) {
  run.activation = decode_bytes(json.at("activation_bytes"));
  run.buffers = decode_bytes(json.at("buffer_bytes"));
  run.peak = decode_bytes(json.at("peak"));
  run.moment = json.at("peak").at("moment");
  for (const auto& [name, bytes] : json.at("wire_bytes_by_collective").items())
    run.collectives.push_back({name, bytes});
  run.process = decode_shares(json.at("process"));
  run.process_bytes = json.at("process_bytes");
  run.steps_made = json.value("steps_made", static_cast<std::int64_t>(run.losses.size()));
  run.seconds = decode_seconds(json.at("seconds"));
  run.predicted_seconds = decode_optional(json.at("predicted_step_seconds"));
  if (run.predicted_seconds) run.profile = json.value("profile", "");
  run.profile_estimated = json.value("profile_estimated", false);
  run.theory = decode_theory(json.at("theory"));
  if (json.contains("timeline")) run.timeline = json.at("timeline").dump();
}

RunResult decode_run(const Json& json) {
  RunResult run;
  run.plan = json.at("plan");
  run.optimizer_name = json.at("optimizer");
  run.lr = json.value("lr", 0.0);
  run.precision = json.at("precision");
  run.losses = numbers(json.at("losses"));
  run.grad_norms = numbers(json.at("grad_norms"));
  for (const Json& each : json.at("evaluations")) run.evaluations.push_back({each.at("step"), number(each.at("loss"))});
  const Json& state = json.at("state_bytes");
  run.parameter = decode_bytes(state.at("parameter"));
  run.gradient = decode_bytes(state.at("gradient"));
  run.optimizer = decode_bytes(state.at("optimizer"));
  if (json.contains("tiers"))
    for (const Json& tier : json.at("tiers")) run.tiers.push_back(decode_tier(tier));
  run.wire = decode_wire(json.at("wire_bytes_per_step"));
  run.peak_bytes = json.at("peak_bytes");
  run.update_bytes = json.at("update_bytes");
  run.update_seconds = decode_optional(json.at("update_seconds"));
  decode_costs(json, run);
  run.step_seconds = number(json.at("step_seconds"));
  run.tokens_per_second = number(json.at("tokens_per_second"));
  return run;
}

// Where all runs have the same.
void add_common(Json& json, const Json& runs) {
  for (const char* key : {"optimizer", "lr"}) {
    const auto same = [&](const Json& run) { return run.at(key) == runs.front().at(key); };
    if (!runs.empty() && std::ranges::all_of(runs, same)) json[key] = runs.front().at(key);
  }
}

}  // namespace

std::string to_json(const Report& report) {
  Json runs = Json::array();
  for (const RunResult& run : report.runs) runs.push_back(encode_all(run));
  Json json = models::stamped(models::kReport);
  json.update({{"ranks", report.ranks}, {"parameters", report.parameters}});
  if (!report.model.empty()) json["model"] = report.model;
  json.update({{"batch", report.batch}, {"seq", report.seq}, {"accumulate", report.accumulate}});
  if (!report.command.empty()) json["command"] = report.command;
  add_common(json, runs);
  write_setting(report.setting, json);
  if (!report.precision.empty()) json["precision"] = report.precision;
  json["runs"] = runs;
  return json.dump(2) + "\n";
}

Report from_json(const std::string& text) {
  Json json = Json::parse(text);
  models::take_stamp(json, models::kReport, "the report");
  Report report;
  report.ranks = json.at("ranks");
  report.parameters = json.at("parameters");
  report.precision = json.value("precision", "");
  report.model = json.value("model", "");
  report.batch = json.at("batch");
  report.seq = json.at("seq");
  report.accumulate = json.at("accumulate");
  report.setting = read_setting(json);
  for (const Json& run : json.at("runs")) report.runs.push_back(decode_run(run));
  return report;
}

}  // namespace cli
