#include "cli/options/options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <set>
#include <system_error>

#include "cli/options/device_option.h"
#include "cli/options/recipe.h"
#include "cli/options/setting_options.h"
#include "cli/options/validators.h"

namespace cli {
namespace {

void add_plan_group(CLI::App& command, RunOptions& options, const char* default_ranks) {
  const std::string group = "Plan";
  add_number(command, "-n,--ranks", options.ranks, std::string("Ranks to start [") + default_ranks + "]", 1, kMostRanks)
      ->default_str("")
      ->group(group);
  add_setting(command, options.settings, "precision", group);
  add_exchange_options(command, options, group);
  add_number(command, "--loss-scale", options.loss_scale, "A fixed one; 0 is dynamic in fp16 and none elsewhere", 0)
      ->group(group);
  add_choice(command, "--fp8-scaling", options.fp8_scaling, "By this tensor's largest value or by the last 16 steps'",
             {"current", "delayed"})
      ->group(group);
  command.add_flag("--fp32-norms", options.fp32_norms, "Compute norms with fp32 parameters")->group(group);
  add_setting(command, options.settings, "reproducible", group);
}

void add_model_group(CLI::App& command, RunOptions& options) {
  const std::string group = "Model and data";
  add_path(command, "--model", options.model,
           "micro, tiny, small, 125m, 350m, 1b, 7b, 70b, a config.json, or a folder with one and weights", "MODEL")
      ->capture_default_str()
      ->group(group);
  add_data(command, options.data, options.tokens, group);
  add_number(command, "--seq", options.seq, "Tokens of a sequence", 1)->group(group);
  add_number(command, "--batch", options.batch, "Sequences of a micro-batch, on each rank", 1)->group(group);
  add_setting(command, options.settings, "accumulate", group);
  add_activation_options(command, options, group);
}

void add_training_group(CLI::App& command, RunOptions& options) {
  const std::string group = "Training";
  add_number(command, "--steps", options.steps, "Steps to train", 1)->group(group);
  add_choice(command, "--optimizer", options.optimizer, "What updates the parameters", optimizer_names())->group(group);
  add_number(command, "--lr", options.lr, "Highest learning rate [1e-3 for adamw, for others what suits them]", 0)
      ->group(group);
  add_choice(command, "--schedule", options.schedule, "Of the learning rate, after the warm-up", schedule_names())
      ->group(group);
  add_number(command, "--warmup", options.warmup, "Steps of linear warm-up [a tenth of --steps]", 0)->group(group);
  add_number(command, "--clip", options.clip, "Largest gradient norm; 0 does not clip", 0)->group(group);
  add_number(command, "--seed", options.seed, "Of weights, dropout and the order of the data", 0)->group(group);
  add_number(command, "--threads", options.threads, "Threads of an operator; 1 gives the same bits at any --ranks", 1,
             kMostThreads)
      ->group(group);
  add_device(command, options.device, group);
}

void add_output_group(CLI::App& command, RunOptions& options) {
  const std::string group = "Output";
  add_number(command, "--eval-every", options.eval_every, "Steps between evaluations on held-out data; 0 for none", 0)
      ->group(group);
  add_json(command, options.json);
  add_path(command, "--html", options.html, "Also write it as a page to look at; or -")->group(group);
  add_path(command, "--trace", options.trace, "Also write one step as a trace for Perfetto or Chrome; or -")
      ->group(group);
  add_path(command, "--tensorboard", options.tensorboard,
           "Also write every step's figures to event files in this folder", "FOLDER")
      ->group(group);
  add_path(command, "--profile", options.profile,
           "How fast the machine is, to predict seconds; or none [zero bench profile's]")
      ->group(group);
  command
      .add_flag("!--no-memory-check", options.memory_check,
                "Start even where the run will not find the memory it needs")
      ->group(group);
  command.add_flag("--timeline", options.timeline, "Memory and activities within a step in --json")->group(group);
}

void add_disk_option(CLI::App& command, RunOptions& options) {
  command.add_option("--disk", options.disk, "Folders for states on disk, one for each disk, between commas")
      ->delimiter(',')
      ->type_name("DIR")
      ->group("Plan");
}

// A plan file may say the one, the command line the other.
void check_disk(const RunOptions& options) {
  const std::string offload = options.settings.text("offload");
  if (offload.empty() && !options.disk.empty())
    throw UsageError("--disk: no state is kept on disk: give --offload optimizer=disk");
  if (offload.find("=disk") != std::string::npos && options.disk.empty())
    throw UsageError("--offload " + offload + " needs folders: give --disk DIR");
  std::set<std::filesystem::path> folders;
  for (const std::string& folder : options.disk) {
    std::error_code unknown;
    if (!folders.insert(std::filesystem::weakly_canonical(folder + "/", unknown)).second)
      throw UsageError("--disk names the folder '" + folder + "' twice: give each disk one folder");
  }
}

void add_common(CLI::App& command, RunOptions& options, const char* default_ranks) {
  add_plan_group(command, options, default_ranks);
  add_model_group(command, options);
  add_training_group(command, options);
  add_output_group(command, options);
  command.add_option("--command", options.command)->group("");  // of who started this rank; not in the help
  command.set_help_flag("-h,--help", "Print this help")->group("Output");
}

// Takes several of `names`, or all, in place of what the option `one` takes.
CLI::Option* add_several(CLI::App& command, CLI::Option* one, std::vector<std::string>& values,
                         std::vector<std::string> names, const char* text) {
  names.emplace_back("all");
  return add_choices(command, one->get_name() + "s", values, text, names)->excludes(one)->group(one->get_group());
}

void expand_all(std::vector<std::string>& values, const std::vector<std::string>& names) {
  if (std::ranges::count(values, "all")) values = names;
}

// Plans are compared unless several optimizers are; these have one plan.
void add_optimizers(CLI::App& command, RunOptions& options) {
  CLI::Option* const optimizers =
      add_several(command, command.get_option("--optimizer"), options.optimizers, optimizer_names(),
                  "Compare these, or all, under the first of --plans [zero3]");
  add_several(command, command.get_option("--precision"), options.precisions, texts(zero::precisions()),
              "Train each of --optimizers in these, or all [in --precision]")
      ->needs(optimizers);
  command.callback([&command, &options] {
    options.given = given_to(command);
    check_disk(options);
    if (!command.count("--plans")) options.plans = usual_plans(options);
    if (options.optimizers.empty()) return;
    const RunOptions usual;
    if (!command.count("--plans")) options.plans = usual.plans;
    options.plans.resize(1);
    expand_all(options.optimizers, optimizer_names());
    expand_all(options.precisions, texts(zero::precisions()));
  });
}

bool present(const char* name) {
  return std::getenv(name) != nullptr;
}

}  // namespace

void add_train_options(CLI::App& command, RunOptions& options) {
  options.plans = {"zero3"};
  add_path(command, "--plan", options.plans.front(),
           zero::joined(zero::Plan::presets()) + ", or a file that zero plan --fit wrote", "PLAN")
      ->capture_default_str()
      ->group("Plan");
  add_common(command, options, "1");
  add_disk_option(command, options);
  add_saving_options(command, options.saving);
  add_restarts(command, options.restarts, "Checkpoints")->needs("--save-to");
  command.callback([&command, &options] {
    options.given = given_to(command);
    take_plan_file(command, options);
    check_disk(options);
  });
}

void add_compare_options(CLI::App& command, RunOptions& options) {
  options.plans = usual_plans(options);
  add_choices(command, "--plans", options.plans, "Plans to compare, the first being the reference",
              texts(zero::Plan::presets()))
      ->group("Plan");
  add_common(command, options, "4");
  add_disk_option(command, options);
  add_optimizers(command, options);
}

std::vector<GivenOption> given_to(const CLI::App& command) {
  std::vector<GivenOption> given;
  for (const CLI::Option* each : command.get_options())
    if (!is_setting(each->get_name()))
      for (const std::string& value : each->results()) given.emplace_back(each->get_name(), value);
  return given;
}

std::vector<std::string> arguments(std::vector<std::string> command, const std::vector<GivenOption>& given,
                                   const std::map<std::string, std::string>& own) {
  const auto add = [&](const std::string& name, const std::string& value) { command.push_back(name + "=" + value); };
  for (const auto& [name, value] : own)
    if (!value.empty()) add(name, value);
  for (const auto& [name, value] : given)
    if (!own.contains(name)) add(name, value);
  return command;
}

std::vector<std::string> train_arguments(const RunOptions& options, const std::string& plan, const std::string& json) {
  // Empty: not said to this run.
  const std::map<std::string, std::string> own{{"--plan", plan},
                                               {"--json", json},
                                               {"--optimizer", options.optimizer},
                                               {"--device", options.device},
                                               {"--html", options.html},
                                               {"--trace", options.trace},
                                               {"--tensorboard", options.tensorboard},
                                               {"--command", options.command},
                                               {"--timeline", options.timeline ? "true" : ""},
                                               {"--no-memory-check", options.memory_check ? "" : "true"},
                                               {"--plans", ""},
                                               {"--optimizers", ""},
                                               {"--precisions", ""},
                                               {"--restarts", ""}};
  std::vector<std::string> words = arguments({"zero", "train"}, options.given, own);
  for (const std::string& each : arguments_of(options.settings)) words.push_back(each);
  return words;
}

std::vector<std::string> usual_plans(const SharedOptions& options) {
  return texts(options.shard_ranks ? zero::Plan::exact_presets() : zero::Plan::stages());
}

zero::MeshShape mesh_of(const SharedOptions& options, int ranks) {
  const auto divided = [](const char* option, int all, int by, const char* into) {
    if (all % by != 0)
      throw UsageError(option + (": " + std::to_string(all)) + (all == 1 ? " rank does" : " ranks do") +
                       " not divide into " + into + " of " + std::to_string(by));
    return all / by;
  };
  const int data = divided("--tensor", ranks, options.tensor, "tensor axes");
  if (options.shard_ranks > 0) divided("--shard-ranks", data, options.shard_ranks, "groups");
  return {data, {.shard = options.shard_ranks}};
}

zero::Plan make_plan(const SharedOptions& options, std::string_view name, int ranks) try {
  zero::Plan plan = options.settings.plan(zero::Plan::named(name));
  plan.validate(mesh_of(options, ranks));
  return plan;
} catch (const zero::ConfigError& error) {
  throw UsageError(error.what());
}

// One task of Slurm's is nobody's rank.
bool launched() {
  if (present("RANK") || present("WORLD_SIZE") || present("OMPI_COMM_WORLD_SIZE")) return true;
  const char* tasks = std::getenv("SLURM_NTASKS");
  return present("SLURM_PROCID") && tasks && std::string_view(tasks) != "1";
}

}  // namespace cli
