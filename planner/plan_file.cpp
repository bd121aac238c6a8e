#include "planner/plan_file.h"

#include <algorithm>
#include <array>

#include "models/schema.h"
#include "planner/fields.h"
#include "planner/offload.h"

namespace planner {
namespace {

std::vector<std::string_view> reductions() {
  return {"", "fp32", "bf16", "fp16"};
}
std::vector<std::string_view> gathers() {
  return {"native", "fp8"};
}

const std::array<Field<PlanFile>, 16> kPlanFields{
    {{.key = "plan", .member = &PlanFile::plan, .required = true, .choices = zero::Plan::presets},
     {.key = "precision", .member = &PlanFile::precision, .choices = zero::precisions},
     {.key = "accumulate", .member = &PlanFile::accumulate, .least = 1},
     {.key = "reproducible", .member = &PlanFile::reproducible},
     {.key = "resident_budget", .member = &PlanFile::resident_budget},
     {.key = "reduce_in", .member = &PlanFile::reduce_in, .choices = reductions},
     {.key = "gather_in", .member = &PlanFile::gather_in, .choices = gathers},
     {.key = "offload", .member = &PlanFile::offload},
     {.key = "delay_update", .member = &PlanFile::delay_update},
     {.key = "optimizer", .member = &PlanFile::optimizer},
     {.key = "ranks", .member = &PlanFile::ranks, .least = 1},
     {.key = "shard_ranks", .member = &PlanFile::shard_ranks, .least = 0},
     {.key = "model", .member = &PlanFile::model},
     {.key = "batch", .member = &PlanFile::batch, .least = 1},
     {.key = "seq", .member = &PlanFile::seq, .least = 1},
     {.key = "command", .member = &PlanFile::command}}};

PlanFile read_plan(Json json, const std::string& source) {
  models::take_stamp(json, models::kPlanFile, source);
  return read_fields<PlanFile>(json, kPlanFields, source);
}

}  // namespace

std::string to_json(const PlanFile& file) {
  Json json = models::stamped(models::kPlanFile);
  json.update(write_fields<PlanFile>(file, kPlanFields));
  return json.dump(2) + "\n";
}

PlanFile plan_file_from_json(const std::string& text, const std::string& source) {
  return read_plan(models::json_object(text, source), source);
}

PlanFile read_plan_file(const std::string& path) {
  return read_plan(models::json_file(path, "give a file that `zero plan --fit` wrote"), path);
}

zero::Plan plan_of(const PlanFile& file) {
  zero::Plan plan = zero::Plan::named(file.plan)
                        .precision(zero::precision_named(file.precision))
                        .accumulate(file.accumulate)
                        .reproducible(file.reproducible)
                        .resident_budget(file.resident_budget);
  for (const zero::Dtype dtype : {zero::Dtype::f32, zero::Dtype::bf16, zero::Dtype::f16})
    if (file.reduce_in == zero::name(dtype)) plan = plan.reduce_in(dtype);
  if (file.gather_in == "fp8") plan = plan.gather_in(zero::Wire::fp8);
  plan = offloaded(plan, file.offload).delay_update(file.delay_update);
  plan.validate({file.ranks, {.shard = file.shard_ranks}});
  return plan;
}

}  // namespace planner
