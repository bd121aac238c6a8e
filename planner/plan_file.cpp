#include "planner/plan_file.h"

#include "models/fields.h"
#include "models/llama_config.h"
#include "models/schema.h"

namespace planner {

void each_field(PlanFile& file, auto& visit) {
  visit("plan", file.plan, {.required = true, .choices = zero::Plan::presets});
  for (const zero::PlanSetting& each : zero::plan_settings())
    visit(each.name, file.settings.said(each.name),
          {.least = static_cast<double>(each.least), .most = static_cast<double>(each.most), .choices = each.choices});
  visit("optimizer", file.optimizer);
  visit("ranks", file.ranks, {.least = 1});
  visit("shard_ranks", file.shard_ranks);
  visit("tensor", file.tensor, {.least = 1});
  visit("model", file.model);
  visit("batch", file.batch, {.least = 1});
  visit("seq", file.seq, {.least = 1});
  visit("recompute", file.recompute, {.choices = models::recomputes});
  visit("loss_pieces", file.loss_pieces, {.least = 1, .most = models::kMostLossPieces});
  visit("command", file.command);
}

namespace {

PlanFile read_plan(models::Json json, const std::string& source) {
  models::take_stamp(json, models::kPlanFile, source);
  PlanFile file = models::read_fields<PlanFile>(json, source);
  // What is not in it is the preset's choice, but for what every file says.
  const zero::PlanSettings usual = PlanFile().settings;
  for (const zero::PlanSetting& each : zero::plan_settings()) {
    const auto found = json.find(each.name);
    const bool said = found != json.end() && *found != "";
    if (!said && !usual.says(each.name)) file.settings.forget(each.name);
  }
  return file;
}

}  // namespace

std::string to_json(const PlanFile& file) {
  models::Json json = models::stamped(models::kPlanFile);
  json.update(models::write_fields(file));
  return json.dump(2) + "\n";
}

PlanFile plan_file_from_json(const std::string& text, const std::string& source) {
  return read_plan(models::json_object(text, source), source);
}

PlanFile read_plan_file(const std::string& path) {
  return read_plan(models::json_file(path, "give a file that `zero plan --fit` wrote"), path);
}

}  // namespace planner
