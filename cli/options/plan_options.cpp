#include <CLI/CLI.hpp>
#include <functional>

#include "cli/commands/plan_command.h"
#include "cli/options/recipe.h"
#include "cli/options/setting_options.h"
#include "cli/options/validators.h"
#include "planner/profile.h"
#include "planner/quantity.h"

namespace cli {
namespace {

void add_model_group(CLI::App& command, PlanOptions& options) {
  const std::string group = "Model and data";
  CLI::Option* const model = add_path(command, "--model", options.model,
                                      "micro, tiny, small, 125m, 350m, 1b, 7b, 70b, or a config.json", "MODEL")
                                 ->group(group);
  add_read(command, "--parameters", options.parameters, "Instead of a model, its size: 7.5e9, 7.5B, 350M, 1T",
           planner::parameters_of, "COUNT", group)
      ->excludes(model);
  add_number(command, "--seq", options.seq, "Tokens of a sequence [4096, or the model's positions if fewer]", 1)
      ->group(group);
  add_number(command, "--batch", options.batch, "Sequences of a micro-batch, on each rank [4]", 1)->group(group);
  add_setting(command, options.settings, "accumulate", group);
  add_activation_options(command, options, group);
}

void add_machine_group(CLI::App& command, PlanOptions& options) {
  const std::string group = "Machine";
  add_number(command, "-n,--ranks", options.ranks, "Ranks of the run", 1, kMostRanks)->group(group);
  add_number(command, "--hosts", options.hosts, "Hosts that have as many of the ranks each", 1, kMostRanks)
      ->group(group);
  const auto bytes = [](std::string_view text) { return planner::bytes_of(text); };
  const auto add_limit = [&](const char* option, std::string& limit, const char* what) {
    add_read(command, option, limit, what, bytes, "SIZE", group);
  };
  add_limit("--device-memory", options.device_memory,
            "Memory for a rank: 80GB, 80GiB [that of the devices of --profile; else no limit]");
  add_limit("--host-memory", options.host_memory,
            "Of each host, for what its ranks offload there; --fit may choose to [no limit, not chosen]");
  add_limit("--disk-space", options.disk_space, "Likewise, of each host's disks");
  add_path(command, "--profile", options.profile,
           "How fast it is: a100, h100, h200 or a profile's file [what zero bench profile measured, without "
           "--device-memory; else h100]")
      ->group(group);
  add_read(command, "--network", options.network,
           "Between hosts, for each rank: 100Gbit, 500Mbit, 12.5GB/s [the profile's]", planner::bandwidth_of, "SPEED",
           group);
  add_choice(command, "--memory", options.memory,
             "Whether sharded parameters lie in memory common to the ranks; auto is common on one host without "
             "--device-memory",
             {"auto", "common", "separate"})
      ->group(group);
}

void add_setting_group(CLI::App& command, PlanOptions& options) {
  const std::string group = "Plan";
  add_choices(command, "--plans", options.plans, "Those to price [all]", texts(zero::Plan::presets()))->group(group);
  add_setting(command, options.settings, "precision", group, "As `zero train` has them [bf16]");
  add_choice(command, "--optimizer", options.optimizer, "As `zero train` has them [adamw]", optimizer_names())
      ->group(group);
  add_exchange_options(command, options, group);
  add_setting(command, options.settings, "reproducible", group);
  add_path(command, "--ds-config", options.ds_config, "Take plan, precision, batch and optimizer from DeepSpeed's file")
      ->group(group);
}

void add_output_group(CLI::App& command, PlanOptions& options) {
  const std::string group = "Output";
  CLI::Option* const fit =
      command.add_flag("--fit", options.fit, "Rank the plans that fit, write the first to --out")->group(group);
  add_path(command, "--out", options.out, "The plan file, for `zero train --plan`; - is standard output alone")
      ->needs(fit)
      ->capture_default_str()
      ->group(group);
  add_json(command, options.json, "the answer");
}

}  // namespace

void add_plan_options(CLI::App& command, PlanOptions& options) {
  add_setting_group(command, options);
  add_machine_group(command, options);
  add_model_group(command, options);
  add_output_group(command, options);
  command.get_option("--tensor")->each([&options](const std::string&) { options.tensor_given = true; });
}

}  // namespace cli
