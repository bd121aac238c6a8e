#include <algorithm>
#include <array>

#include "cli/report/report.h"
#include "models/fields.h"
#include "models/schema.h"

namespace cli {
namespace {

using models::Json;

// Of what is measured there may be none.
constexpr models::FieldRules kMeasured{.null = true}, kSparse{.sparse = true};

}  // namespace

void each_field(Bytes& bytes, auto& visit) {
  visit("predicted", bytes.predicted);
  visit("measured", bytes.measured, kMeasured);
}

void each_field(CodedBytes& bytes, auto& visit) {
  visit("state", bytes.state);
  visit("codec", bytes.codec);
  visit("within_host", bytes.within_host);
  visit("across_hosts", bytes.across_hosts);
}

void each_field(WireBytes& bytes, auto& visit) {
  visit("predicted", bytes.predicted);
  visit("measured", bytes.measured);
  visit("uneven", bytes.uneven);
  visit("within_host", bytes.within_host);
  visit("across_hosts", bytes.across_hosts);
  visit("in_place", bytes.in_place);
  visit("codes", bytes.codes, kSparse);
}

void each_field(TierBytes& tier, auto& visit) {
  visit("tier", tier.tier);
  visit("state", tier.state);
  visit("bytes", tier.held);
  visit("read_per_step", tier.read);
  visit("written_per_step", tier.written);
  visit("uneven", tier.uneven);
}

void each_field(Evaluation& evaluation, auto& visit) {
  visit("step", evaluation.step);
  visit("loss", evaluation.loss, kMeasured);
}

void each_field(Share& share, auto& visit) {
  visit("name", share.name);
  visit("bytes", share.bytes);
}

void each_field(BudgetUse& use, auto& visit) {
  visit("budget_bytes", use.budget);
  visit("unlimited_bytes", use.unlimited);
  visit("peak_bytes", use.peak);
  visit("planned_bytes", use.planned);
  visit("operators", use.operators);
  visit("operators_again", use.again);
  visit("share_of_time", use.share);
}

void each_field(Seconds& seconds, auto& visit) {
  visit("compute", seconds.compute, kMeasured);
  visit("gather", seconds.gather, kMeasured);
  visit("reduce", seconds.reduce, kMeasured);
  visit("update", seconds.update, kMeasured);
  visit("wait", seconds.wait, kMeasured);
}

void each_field(RunResult& run, auto& visit) {
  visit("plan", run.plan);
  visit("optimizer", run.optimizer_name);
  visit("lr", run.lr);
  visit("precision", run.precision);
  visit("losses", run.losses, kMeasured);
  visit("grad_norms", run.grad_norms, kMeasured);
  visit("evaluations", run.evaluations);
  visit.group("state_bytes", [&](auto& state) {
    state("parameter", run.parameter);
    state("gradient", run.gradient);
    state("optimizer", run.optimizer);
  });
  visit("activation_bytes", run.activation);
  visit("recomputation", run.recomputation, kSparse);
  visit("buffer_bytes", run.buffers);
  visit.group("peak", [&](auto& peak) {
    each_field(run.peak, peak);
    peak("moment", run.moment);
  });
  visit("wire_bytes_per_step", run.wire);
  visit("wire_bytes_by_collective", run.collectives);
  visit("tensor_wire_bytes", run.tensor_wire);
  visit("peak_bytes", run.peak_bytes);
  visit("process", run.process);
  visit("process_bytes", run.process_bytes);
  visit("steps_made", run.steps_made);
  visit("update_bytes", run.update_bytes);
  visit("update_seconds", run.update_seconds);
  visit("seconds", run.seconds);
  visit("step_seconds", run.step_seconds, kMeasured);
  visit("predicted_step_seconds", run.predicted_seconds);
  visit("profile", run.profile, kMeasured);
  visit("profile_estimated", run.profile_estimated);
  visit("tokens_per_second", run.tokens_per_second, kMeasured);
  visit.group("theory", [&](auto& theory) {
    theory("state", run.theory.state);
    theory("state_bytes", run.theory.state_bytes);
    theory("volume", run.theory.volume);
    theory("volume_bytes", run.theory.volume_bytes);
  });
  visit("tiers", run.tiers, kSparse);
  visit("timeline", run.timeline, kSparse);
}

namespace {

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
  for (const RunResult& run : report.runs) runs.push_back(models::write_fields(run));
  Json json = models::stamped(models::kReport);
  json.update({{"ranks", report.ranks}, {"parameters", report.parameters}});
  if (!report.model.empty()) json["model"] = report.model;
  json.update({{"batch", report.batch}, {"seq", report.seq}, {"accumulate", report.accumulate}});
  if (!report.command.empty()) json["command"] = report.command;
  add_common(json, runs);
  json.update(report.setting);
  if (!report.precision.empty()) json["precision"] = report.precision;
  json["runs"] = runs;
  return json.dump(2) + "\n";
}

std::vector<RunResult> runs_from_json(const std::string& text) {
  Json json = Json::parse(text);
  models::take_stamp(json, models::kReport, "the report");
  std::vector<RunResult> runs;
  for (const Json& run : json.at("runs")) runs.push_back(models::read_fields<RunResult>(run, "the report"));
  return runs;
}

}  // namespace cli
