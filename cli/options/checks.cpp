#include "cli/options/checks.h"

#include <filesystem>
#include <vector>

#include "base/text.h"
#include "cli/files.h"
#include "cli/options/device_option.h"
#include "cli/options/model.h"
#include "cli/options/places.h"
#include "cli/options/recipe.h"
#include "models/json.h"
#include "planner/profile.h"
#include "zero/loss_scale.h"

namespace cli {
namespace {

std::vector<std::string> precisions_of(const RunOptions& options) {
  return options.precisions.empty() ? std::vector{options.settings.text("precision")} : options.precisions;
}

void check_positions(const models::LlamaConfig& config, std::int64_t seq, const std::string& model) {
  if (seq > config.max_position_embeddings)
    throw UsageError("--seq: " + std::to_string(seq) + " tokens are more than the " +
                     std::to_string(config.max_position_embeddings) + " positions of model " + zero::in_quotes(model));
}

void check_profile(const RunOptions& options) {
  if (options.profile.empty() || options.profile == kNoProfile) return;
  const planner::Profile profile = planner::profile_named(options.profile);
  for (const std::string& precision : precisions_of(options)) profile.pace(zero::precision_named(precision));
}

void check_loss_scale(const RunOptions& options) {
  if (options.loss_scale == 0) return;
  for (const std::string& fault : zero::faults(zero::LossScale::fixed(options.loss_scale)))
    throw UsageError("--loss-scale: " + fault);
}

void check_plans(const RunOptions& options, int ranks) {
  RunOptions each = options;
  for (const std::string& precision : precisions_of(options)) {
    each.settings.set("precision", precision);
    for (const std::string& plan : options.plans) make_plan(each, plan, ranks);
  }
}

void check_tiers(const RunOptions& options) {
  const zero::Plan plan = options.settings.plan();
  for (const zero::State state : {zero::State::parameter, zero::State::gradient, zero::State::optimizer})
    if (plan[state].tier == zero::Tier::host && !options.device.empty() && on_host(options.device))
      throw UsageError("--offload " + options.settings.text("offload") +
                       ": the model is trained on the CPU, whose memory the host's is: use disk, or --device cuda");
}

void check_activation_budgets(const RunOptions& options, int ranks) {
  if (options.settings.text("activation_budget").empty()) return;
  RunOptions each = options;
  for (const std::string& precision : precisions_of(options)) {
    each.settings.set("precision", precision);
    for (const std::string& plan : options.plans) {
      each.plans = {plan};
      check_activation_budget(each, load_model(options.model, options), ranks);
    }
  }
}

std::vector<std::string> optimizers_of(const RunOptions& options) {
  return options.optimizers.empty() ? std::vector{options.optimizer} : options.optimizers;
}

}  // namespace

void check_room(const RunOptions& options, int ranks, int here) {
  check_activation_budgets(options, ranks);
  if (!options.memory_check) return;
  auto room = planner::room_of_host();
  const auto limited = planner::room_of_processes(here, planner::limits_of_process());
  if (limited && (!room || limited->bytes < room->bytes)) room = limited;
  if (!room) return;
  const models::LlamaConfig model = load_model(options.model, options);
  RunOptions each = options;
  for (const std::string& plan : options.plans)
    for (const std::string& optimizer : optimizers_of(options))
      for (const std::string& precision : precisions_of(options)) {
        each.plans = {plan};
        each.optimizer = optimizer;
        each.settings.set("precision", precision);
        check_room(each, model, ranks, here, *room);
      }
}

void check_settings(const RunOptions& options, int ranks) {
  check_apart(places_of(options));
  check_positions(load_model(options.model), options.seq, options.model);
  if (ranks > 0) check_count(options, ranks);
  if (ranks > 0) check_plans(options, ranks);
  check_tiers(options);
  check_loss_scale(options);
  make_optimizer(options);
  check_profile(options);
  check(options.saving);
  if (options.restarts > 0 && launched())
    throw UsageError("--restarts: the launcher started these ranks, and is who starts them again; give it to that one");
  if (!options.data.empty()) open_data(options.data, options.tokens);
  if (options.data.empty() && options.tokens) throw UsageError("--tokens says how to read --data, which is missing");
  if (!launched()) check_outputs(options);
}

void check_settings(const ProfileOptions& options) {
  const std::string path = output_of(options);
  if (is_standard_output(path)) return;
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  std::error_code error;
  if (folder.empty() || std::filesystem::exists(folder, error)) return check_writable(path);
  check_folder(folder.string());
}

void check_settings(const EvalOptions& options) {
  check_apart(places_of(options));
  check_positions(find_pretrained(options.model).config, options.seq, options.model);
  if (const models::TokenSource data = open_data(options.data, options.tokens); data.size() < 2)
    throw zero::ConfigError("--data: " + zero::in_quotes(options.data) + " has one token, which nothing predicts",
                            "give two or more");
  if (!options.json.empty()) check_writable(options.json);
}

std::string output_of(const ProfileOptions& options) {
  return options.out.empty() ? planner::usual_profile_path(device_named(options.device).kind) : options.out;
}

void check_count(const RunOptions& options, int ranks) {
  if (models::product(
          {options.steps, std::get<std::int64_t>(options.settings["accumulate"]), ranks, options.batch, options.seq}))
    return;
  throw UsageError("--steps x --accumulate x --batch x --seq on " + std::to_string(ranks) +
                   (ranks == 1 ? " rank" : " ranks") + " are more tokens than can be counted");
}

void check_outputs(const RunOptions& options) {
  for (const std::string& path : {options.json, options.html, options.trace})
    if (!path.empty()) check_writable(path);
  if (is_standard_output(options.tensorboard)) throw UsageError("--tensorboard: a folder cannot be standard output");
  if (!options.tensorboard.empty()) check_folder(options.tensorboard);
}

}  // namespace cli
