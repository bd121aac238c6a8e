#include "cli/options/options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <set>
#include <system_error>

#include "cli/options/device_option.h"
#include "cli/options/plan_option.h"
#include "cli/options/recipe.h"
#include "cli/options/validators.h"
#include "planner/offload.h"
#include "planner/plan_file.h"

namespace cli {
namespace {

std::vector<std::string> preset_names() {
  const auto names = zero::Plan::presets();
  return {names.begin(), names.end()};
}

std::vector<std::string> precision_names() {
  const auto names = zero::precisions();
  return {names.begin(), names.end()};
}

void add_plan_group(CLI::App& command, RunOptions& options, const char* default_ranks) {
  const std::string group = "Plan";
  add_number(command, "-n,--ranks", options.ranks, std::string("Ranks to start [") + default_ranks + "]", 1, kMostRanks)
      ->default_str("")
      ->group(group);
  add_choice(command, "--precision", options.precision,
             "fp32; bf16, fp16 or fp8 (in linear layers) with fp32 main weights; bf16 without, rounded at random (sr), "
             "with a remainder (kahan), or neither (pure)",
             precision_names())
      ->group(group);
  add_exchange_options(command, options, group);
  add_number(command, "--loss-scale", options.loss_scale, "A fixed one; 0 is dynamic in fp16 and none elsewhere", 0)
      ->group(group);
  add_choice(command, "--fp8-scaling", options.fp8_scaling, "By this tensor's largest value or by the last 16 steps'",
             {"current", "delayed"})
      ->group(group);
  command.add_flag("--fp32-norms", options.fp32_norms, "Compute norms with fp32 parameters")->group(group);
  command.add_flag("--reproducible", options.reproducible, "The same bits for every split of the batch")->group(group);
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
  add_number(command, "--accumulate", options.accumulate, "Micro-batches of a step, on each rank", 1)->group(group);
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
  if (options.offload.empty() && !options.disk.empty())
    throw UsageError("--disk: no state is kept on disk: give --offload optimizer=disk");
  if (options.offload.find("=disk") != std::string::npos && options.disk.empty())
    throw UsageError("--offload " + options.offload + " needs folders: give --disk DIR");
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
  add_several(command, command.get_option("--precision"), options.precisions, precision_names(),
              "Train each of --optimizers in these, or all [in --precision]")
      ->needs(optimizers);
  command.callback([&command, &options] {
    check_disk(options);
    if (!command.count("--plans")) options.plans = usual_plans(options);
    if (options.optimizers.empty()) return;
    const RunOptions usual;
    if (!command.count("--plans")) options.plans = usual.plans;
    options.plans.resize(1);
    expand_all(options.optimizers, optimizer_names());
    expand_all(options.precisions, precision_names());
  });
}

bool present(const char* name) {
  return std::getenv(name) != nullptr;
}

}  // namespace

void add_exchange_options(CLI::App& command, ExchangeOptions& options, const std::string& group) {
  add_number(command, "--shard-ranks", options.shard_ranks,
             "Ranks of a shard group, such as those of a host, inside which hybrid plans shard [all]", 1, kMostRanks)
      ->default_str("")
      ->group(group);
  add_size(command, "--resident-budget", options.resident_budget,
           "Bytes for gathered parameters: 500M, 2GiB; 0 is two units")
      ->group(group);
  add_choice(command, "--reduce-in", options.reduce_in, "Dtype in which gradients travel [their own]",
             {"fp32", "bf16", "fp16"})
      ->group(group);
  add_choice(command, "--gather-in", options.gather_in, "How sharded parameters travel: as they are, or in FP8",
             {"native", "fp8"})
      ->group(group);
  command
      .add_option("--offload", options.offload,
                  "States that are kept elsewhere, between commas: parameter=disk, gradient=host, optimizer=host, or a "
                  "share: optimizer=host:0.8")
      ->check(read_by<zero::Plan>([](std::string_view text) { return planner::offloaded({}, std::string(text)); }))
      ->join(',')
      ->type_name("STATE=TIER")
      ->group(group);
  command
      .add_flag("--delay-update", options.delay_update,
                "Update beside the next step, which computes with the parameters of the step before")
      ->group(group);
}

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
    take_plan_file(command, options);
    check_disk(options);
  });
}

void add_compare_options(CLI::App& command, RunOptions& options) {
  options.plans = usual_plans(options);
  add_choices(command, "--plans", options.plans, "Plans to compare, the first being the reference", preset_names())
      ->group("Plan");
  add_common(command, options, "4");
  add_disk_option(command, options);
  add_optimizers(command, options);
}

std::vector<std::string> train_arguments(const RunOptions& options, const std::string& plan, const std::string& json) {
  std::vector<std::string> result{"zero", "train", "--plan=" + plan};
  const auto add = [&](const char* name, const auto& value) { result.push_back(name + ("=" + text(value))); };
  if (!json.empty()) add("--json", json);
  if (options.ranks) add("--ranks", options.ranks);
  add("--precision", options.precision);
  add("--loss-scale", options.loss_scale);
  add("--fp8-scaling", options.fp8_scaling);
  if (options.shard_ranks) add("--shard-ranks", options.shard_ranks);
  if (!options.reduce_in.empty()) add("--reduce-in", options.reduce_in);
  add("--gather-in", options.gather_in);
  add("--resident-budget", text(options.resident_budget) + "B");
  if (!options.offload.empty()) add("--offload", options.offload);
  if (options.delay_update) result.push_back("--delay-update");
  if (!options.disk.empty()) add("--disk", zero::joined(options.disk, ","));
  add("--model", options.model);
  if (!options.data.empty()) add("--data", options.data);
  if (options.tokens) add("--tokens", options.tokens);
  add("--seq", options.seq);
  add("--batch", options.batch);
  add("--accumulate", options.accumulate);
  add("--steps", options.steps);
  add("--optimizer", options.optimizer);
  if (options.lr) add("--lr", *options.lr);
  add("--schedule", options.schedule);
  if (options.warmup) add("--warmup", *options.warmup);
  add("--clip", options.clip);
  add("--seed", options.seed);
  add("--threads", options.threads);
  if (!options.device.empty()) add("--device", options.device);
  add("--eval-every", options.eval_every);
  if (!options.html.empty()) add("--html", options.html);
  if (!options.trace.empty()) add("--trace", options.trace);
  if (!options.tensorboard.empty()) add("--tensorboard", options.tensorboard);
  if (!options.profile.empty()) add("--profile", options.profile);
  if (!options.command.empty()) add("--command", options.command);
  if (!options.memory_check) result.push_back("--no-memory-check");
  const SavingOptions& saving = options.saving;
  if (!saving.folder.empty()) add("--save-to", saving.folder);
  if (!saving.every.empty()) add("--save-every", saving.every);
  if (!saving.resume.empty()) add("--resume", saving.resume);
  if (saving.keep) add("--keep", saving.keep);
  if (saving.keep_every) add("--keep-every", saving.keep_every);
  if (saving.new_optimizer) result.push_back("--allow-new-optimizer");
  if (saving.goes_on) result.push_back("--go-on-unsaved");
  if (options.timeline) result.push_back("--timeline");
  if (options.fp32_norms) result.push_back("--fp32-norms");
  if (options.reproducible) result.push_back("--reproducible");
  return result;
}

std::vector<std::string> usual_plans(const ExchangeOptions& options) {
  const auto names = options.shard_ranks ? zero::Plan::presets() : zero::Plan::stages();
  return {names.begin(), names.end()};
}

zero::MeshShape mesh_of(const ExchangeOptions& options, int ranks) {
  if (options.shard_ranks > 0 && ranks % options.shard_ranks != 0)
    throw UsageError("--shard-ranks: " + std::to_string(ranks) + (ranks == 1 ? " rank does" : " ranks do") +
                     " not divide into groups of " + std::to_string(options.shard_ranks));
  return {ranks, {.shard = options.shard_ranks}};
}

zero::Plan make_plan(const RunOptions& options, std::string_view name, int ranks) try {
  const auto largest = std::uint64_t{std::numeric_limits<std::int64_t>::max()};
  return planner::plan_of({.plan = std::string(name),
                           .precision = options.precision,
                           .accumulate = options.accumulate,
                           .reproducible = options.reproducible,
                           .resident_budget = static_cast<std::int64_t>(std::min(options.resident_budget, largest)),
                           .reduce_in = options.reduce_in,
                           .gather_in = options.gather_in,
                           .offload = options.offload,
                           .delay_update = options.delay_update,
                           .ranks = mesh_of(options, ranks).size(zero::Axis::data),
                           .shard_ranks = options.shard_ranks});
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
