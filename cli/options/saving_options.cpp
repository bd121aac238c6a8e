#include "cli/options/saving_options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cstdlib>
#include <utility>

#include "base/number.h"
#include "base/text.h"
#include "cli/files.h"
#include "cli/options/validators.h"
#include "zero/checkpoint.h"

namespace cli {
namespace {

constexpr const char* kGroup = "Checkpoints";
constexpr std::array<std::pair<std::string_view, double>, 3> kUnits{{{"min", 60}, {"s", 1}, {"h", 3600}}};
constexpr double kLongest = 1e9;  // seconds

// By torchrun, or by us.
bool started_again() {
  const char* const count = std::getenv("TORCHELASTIC_RESTART_COUNT");
  return count != nullptr && std::string_view(count) != "0" && *count != '\0';
}

}  // namespace

SaveInterval save_interval(std::string_view text) {
  for (const auto& [unit, seconds] : kUnits) {
    if (!text.ends_with(unit)) continue;
    const auto number = zero::read_number<double>(text.substr(0, text.size() - unit.size()), 0, kLongest);
    if (!number.fault.empty() || !(number.value > 0)) break;
    return {.seconds = number.value * seconds};
  }
  const auto steps = zero::read_number<std::int64_t>(text, 1, INT64_MAX);
  if (steps.fault.empty()) return {.steps = steps.value};
  throw zero::ConfigError("--save-every: " + zero::in_quotes(text) +
                          " is neither a number of steps, such as 100, nor a time, such as 600s, 10min or 2h");
}

Resume resume_of(std::string_view text) {
  if (text == "auto") return {.newest = true};
  if (text == "none" || text.empty()) return {};
  const auto step = zero::read_number<std::int64_t>(text, 0, INT64_MAX);
  if (step.fault.empty()) return {.step = step.value};
  throw zero::ConfigError("--resume: " + zero::in_quotes(text) + " is neither auto, none nor the step of a checkpoint");
}

Resume resume_of(const SavingOptions& options) {
  return started_again() ? Resume{.newest = true} : resume_of(options.resume);
}

bool saves_behind(const SavingOptions& options, std::int64_t done, std::int64_t steps) {
  if (options.folder.empty() || options.every.empty() || done + 1 >= steps) return false;
  const SaveInterval interval = save_interval(options.every);
  return interval.seconds > 0 || (steps - 1) / interval.steps > done / interval.steps;
}

void add_saving_options(CLI::App& command, SavingOptions& options) {
  CLI::Option* const folder =
      add_path(command, "--save-to", options.folder, "Save checkpoints in this folder, at the end too", "FOLDER")
          ->group(kGroup);
  add_read(command, "--save-every", options.every, "Steps, or a time such as 10min, between checkpoints [the end only]",
           save_interval, "STEPS|TIME", kGroup)
      ->needs(folder);
  const auto read = [](std::string_view text) { return resume_of(text); };
  add_read(command, "--resume", options.resume,
           "Go on from the newest checkpoint there is (auto), from that of a step, or start (none)", read,
           "auto|none|STEP", kGroup)
      ->needs(folder);
  add_number(command, "--keep", options.keep, "So many of the newest checkpoints stay; 0: all", 0)
      ->needs(folder)
      ->group(kGroup);
  add_number(command, "--keep-every", options.keep_every, "With --keep: those of every so many steps stay too", 0)
      ->needs(folder)
      ->group(kGroup);
  command
      .add_flag("--allow-new-optimizer", options.new_optimizer,
                "With --resume: an optimizer of which the checkpoint has not the state begins anew")
      ->needs(folder)
      ->group(kGroup);
  command.add_flag("--go-on-unsaved", options.goes_on, "Train on where a checkpoint could not be saved")
      ->needs(folder)
      ->group(kGroup);
}

void check(const SavingOptions& options) {
  if (options.folder.empty()) return;
  if (is_standard_output(options.folder)) throw UsageError("--save-to: a folder cannot be standard output");
  if (options.keep_every > 0 && options.keep == 0)
    throw UsageError("--keep-every: without --keep, how many of the newest stay, all do");
  const Resume resume = resume_of(options);
  if (resume.newest) return;
  const std::string folder = zero::in_quotes(options.folder);
  const std::vector<std::int64_t> there = zero::checkpoint_steps(options.folder);
  if (resume.step && std::ranges::count(there, *resume.step) == 0)
    throw UsageError("--resume: " + folder + " has no checkpoint of step " + std::to_string(*resume.step) +
                     (there.empty() ? "" : ", but up to step " + std::to_string(there.back())));
  if (there.empty() || there.back() == resume.step) return;
  const std::string last = folder + " has checkpoints up to step " + std::to_string(there.back()) + ": ";
  if (resume.step)
    throw UsageError("--resume: " + last + "move those after step " + std::to_string(*resume.step) +
                     " elsewhere first");
  throw UsageError("--save-to: " + last + "go on from there with --resume auto, or give another folder");
}

}  // namespace cli
