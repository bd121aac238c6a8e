#include "cli/options/checks.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <vector>

#include "base/text.h"
#include "cli/options/device_option.h"
#include "cli/options/recipe.h"
#include "planner/offload.h"
#include "planner/price.h"
#include "planner/quantity.h"
#include "zero/error.h"

namespace cli {
namespace {

struct Need {
  std::int64_t bytes = 0;  // of a rank, of the host's memory
  std::string moment;
};

std::int64_t largest_tensor(const planner::Shape& shape) {
  std::int64_t most = 0;
  for (const zero::ParameterInfo& info : shape.infos)
    most = std::max(most, std::accumulate(info.shape.begin(), info.shape.end(), std::int64_t{1}, std::multiplies<>()));
  return most * zero::size_of(zero::Dtype::f32);
}

// A model is built without memory but for one tensor's, from which the generator of random numbers goes on, and then
// unit by unit into the engine; afterwards the peak is a step's. For a device values are made in the host's memory,
// where the engine then has what it saves.
Need need_of(const RunOptions& options, const models::LlamaConfig& model, int ranks) {
  const zero::Plan plan = make_plan(options, options.plans.front(), ranks);
  const zero::Wire wire = plan[zero::State::parameter].wire;
  const planner::Shape shape = planner::shape_of(model, options.tensor);
  const zero::Estimate estimate =
      planner::estimate(shape, plan, make_optimizer(options), mesh_of(options, ranks),
                        wire == zero::Wire::native ? zero::Memory::common : zero::Memory::separate);
  const planner::Peak peak = planner::peak_of(estimate, planner::activations({.config = shape.config,
                                                                              .batch = options.batch,
                                                                              .seq = options.seq,
                                                                              .precision = plan.precision(),
                                                                              .budget = plan.activation_budget()}));
  const bool host = on_host(options.device);
  // Rank 0 of each part begins with whole values.
  const std::int64_t whole = largest_tensor(planner::shape_of(model));
  const std::int64_t building =
      options.tensor > 1 ? whole + (host ? estimate.building : 0) : std::max(whole, host ? estimate.building : 0);
  const std::int64_t step =
      (host ? peak.bytes : 0) +
      (saves_behind(options.saving, 0, options.steps) ? estimate.held[zero::Owner::snapshot].peak : 0);
  return building > step ? Need{building, "while the model is built"} : Need{step, "within a step"};
}

class Fitting {
 public:
  Fitting(const RunOptions& options, const models::LlamaConfig& model, int ranks, std::int64_t room)
      : options_(options), model_(model), ranks_(ranks), room_(room) {}

  // What to write on the command line instead, each change by itself.
  std::vector<std::string> changes() const {
    std::vector<std::string> found;
    for (RunOptions other = options_; other.batch > 1;) {
      other.batch /= 2;
      if (!fits(other, model_)) continue;
      found.push_back("--batch " + std::to_string(other.batch));
      break;
    }
    for (const std::string_view plan : zero::Plan::stages()) {
      RunOptions other = options_;
      other.plans = {std::string(plan)};
      if (found.empty() && fits(other, model_)) found.push_back("plan " + other.plans.front());
    }
    if (const std::string tiers = tiers_that_fit(); !tiers.empty()) found.push_back(tiers);
    if (const std::string model = largest_model(); !model.empty()) found.push_back("--model " + model);
    return found;
  }

 private:
  bool fits(const RunOptions& options, const models::LlamaConfig& model) const try {
    return need_of(options, model, ranks_).bytes <= room_;
  } catch (const zero::ConfigError&) {
    return false;
  }

  // Of the run's plan: what is then on disks, which is not in the host's memory.
  std::string tiers_that_fit() const {
    RunOptions other = options_;
    for (const char* each : {"offload", "delay_update"}) other.settings.forget(each);
    const zero::Plan plan = make_plan(other, options_.plans.front(), ranks_);
    for (const zero::Plan& choice : planner::tier_choices(plan, {zero::Tier::disk}, mesh_of(options_, ranks_))) {
      const std::string offload = zero::offload_of(choice);
      other.settings.set("offload", offload);
      if (offload == options_.settings.text("offload") || !fits(other, model_)) continue;
      return "--offload " + offload + (options_.disk.empty() ? " --disk DIR" : "");
    }
    return {};
  }

  std::string largest_model() const {
    std::string name;
    std::int64_t most = 0;
    for (const std::string_view preset : models::llama_presets()) {
      models::LlamaConfig other = models::llama_preset(preset);
      other.activations = model_.activations;
      const std::int64_t count = models::parameter_count(other);
      if (count <= most || options_.seq > other.max_position_embeddings || !fits(options_, other)) continue;
      most = count;
      name = preset;
    }
    return name;
  }

  const RunOptions& options_;
  const models::LlamaConfig& model_;
  int ranks_;
  std::int64_t room_;  // of a rank
};

std::string advice(const std::vector<std::string>& changes) {
  return changes.empty() ? "no named model fits" : "this fits: " + zero::joined(changes, ", or ");
}

}  // namespace

void check_activation_budget(const RunOptions& options, const models::LlamaConfig& model, int ranks) {
  const zero::Plan plan = make_plan(options, options.plans.front(), ranks);
  if (!plan.activation_budget() || !on_host(options.device)) return;
  const planner::MicroBatch work{.config = model,
                                 .batch = options.batch,
                                 .seq = options.seq,
                                 .precision = plan.precision(),
                                 .budget = plan.activation_budget(),
                                 .gathers = planner::gathers_parameters(plan, mesh_of(options, ranks)),
                                 .way = planner::stored_way(plan, {})};
  if (planner::foresees_budget(work)) planner::price_of_budget(work, planner::pace_for({}, plan.precision()));
}

void check_room(const RunOptions& options, const models::LlamaConfig& model, int ranks, int here,
                const planner::Room& room) {
  const Need need = need_of(options, model, ranks);
  if (need.bytes <= room.bytes / here) return;
  const std::string who = here == 1 ? "a rank of " : std::to_string(here) + " ranks of ";
  const std::string each = here == 1 ? "" : planner::in_units(need.bytes) + " each ";
  throw zero::Error(who + options.plans.front() + " need" + (here == 1 ? "s " : " ") +
                        planner::in_units(need.bytes > INT64_MAX / here ? INT64_MAX : need.bytes * here) +
                        " of memory (" + each + need.moment + "), and " + planner::in_units(room.bytes) +
                        " are available, by " + room.limited_by,
                    advice(Fitting(options, model, ranks, room.bytes / here).changes()));
}

}  // namespace cli
