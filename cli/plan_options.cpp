#include <CLI/CLI.hpp>

#include "plan_command.h"
#include "planner/profile.h"
#include "planner/quantity.h"
#include "recipe.h"
#include "validators.h"

namespace cli {
namespace {

std::vector<std::string> texts(const std::vector<std::string_view>& names) {
  return {names.begin(), names.end()};
}

void add_model_group(CLI::App& command, PlanOptions& options) {
  const std::string group = "Model and data";
  CLI::Option* const model =
      command.add_option("--model", options.model, "micro, tiny, small, 125m, 350m, 1b, 7b, 70b, or a config.json")
          ->group(group);
  command.add_option("--parameters", options.parameters, "Instead of a model, its size: 7.5e9, 7.5B, 350M, 1T")
      ->check(read_by(planner::parameters_of))
      ->excludes(model)
      ->group(group);
  command.add_option("--seq", options.seq, "Tokens of a sequence [4096, or the model's positions if fewer]")
      ->check(at_least<std::int64_t>(1))
      ->group(group);
  command.add_option("--batch", options.batch, "Sequences of a micro-batch, on each rank [4]")
      ->check(at_least<std::int64_t>(1))
      ->group(group);
  command.add_option("--accumulate", options.accumulate, "Micro-batches of a step, on each rank [1]")
      ->check(at_least(1))
      ->group(group);
}

void add_machine_group(CLI::App& command, PlanOptions& options) {
  const std::string group = "Machine";
  command.add_option("-n,--ranks", options.ranks, "Ranks of the run")
      ->check(at_least(1))
      ->capture_default_str()
      ->group(group);
  command.add_option("--hosts", options.hosts, "Hosts that have as many of the ranks each")
      ->check(at_least(1))
      ->capture_default_str()
      ->group(group);
  command.add_option("--device-memory", options.device_memory, "Memory for a rank: 80GB, 80GiB [no limit]")
      ->check(read_by(planner::bytes_of))
      ->group(group);
  command
      .add_option("--profile", options.profile,
                  "How fast it is: a100, h100, h200 or a profile's file [what zero bench profile measured, without "
                  "--device-memory; else h100]")
      ->capture_default_str()
      ->group(group);
  command
      .add_option("--network", options.network,
                  "Between hosts, for each rank: 100Gbit, 500Mbit, 12.5GB/s [the profile's]")
      ->check(read_by(planner::bandwidth_of))
      ->group(group);
  command
      .add_option("--memory", options.memory,
                  "Whether sharded parameters lie in memory common to the ranks; auto: on one host, without "
                  "--device-memory")
      ->check(CLI::IsMember({"auto", "common", "separate"}))
      ->capture_default_str()
      ->group(group);
}

void add_setting_group(CLI::App& command, PlanOptions& options) {
  const std::string group = "Plan";
  command.add_option("--plans", options.plans, "Of ddp, zero1, zero2 and zero3 [all]")
      ->delimiter(',')
      ->check(CLI::IsMember(texts(zero::Plan::presets())))
      ->group(group);
  command.add_option("--precision", options.precision, "fp32, bf16, fp16, fp8, bf16-pure, bf16-sr, bf16-kahan [bf16]")
      ->check(CLI::IsMember(texts(zero::precisions())))
      ->group(group);
  command.add_option("--optimizer", options.optimizer, "As `zero train` has them [adamw]")
      ->check(CLI::IsMember(optimizer_names()))
      ->group(group);
  add_exchange_options(command, options, group);
  command.add_flag("--reproducible", options.reproducible, "The same bits for every split of the batch")->group(group);
  command
      .add_option("--ds-config", options.ds_config, "Take plan, precision, batch and optimizer from DeepSpeed's file")
      ->group(group);
}

void add_output_group(CLI::App& command, PlanOptions& options) {
  const std::string group = "Output";
  CLI::Option* const fit = command.add_flag("--fit", options.fit, "Rank the plans that fit, write the first to --out")
                               ->needs(command.get_option("--device-memory"))
                               ->group(group);
  command.add_option("--out", options.out, "The plan file, for `zero train --plan`")
      ->needs(fit)
      ->capture_default_str()
      ->group(group);
  command.add_option("--json", options.json, "Also write the answer to this file; - is standard output alone")
      ->group(group);
  command.set_help_flag("-h,--help", "Print this help")->group(group);
}

}  // namespace

void add_plan_options(CLI::App& command, PlanOptions& options) {
  add_setting_group(command, options);
  add_machine_group(command, options);
  add_model_group(command, options);
  add_output_group(command, options);
}

}  // namespace cli
