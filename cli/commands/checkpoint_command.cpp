#include "cli/commands/checkpoint_command.h"

#include <CLI/CLI.hpp>
#include <iostream>

#include "base/text.h"
#include "cli/files.h"
#include "cli/options/places.h"
#include "cli/options/validators.h"
#include "cli/report/format.h"
#include "persist/checkpoint_list.h"
#include "persist/env.h"
#include "zero/error.h"

namespace cli {
namespace {

using Run = int (*)(const CheckpointOptions& options);

CLI::App& add_subcommand(CLI::App& command, const char* name, const char* text, CheckpointOptions& options, Run run) {
  CLI::App* const added = command.add_subcommand(name, text);
  added->callback([&options, run] { options.run = run; });
  add_json(*added, options.json, "it");
  return *added;
}

void add_place(CLI::App& command, const char* name, std::string& path, const char* text) {
  add_path(command, name, path, text, "")->required();
}

}  // namespace

CLI::App* add_checkpoint_command(CLI::App& app, CheckpointOptions& options) {
  CLI::App* const command = app.add_subcommand("checkpoint", "Look at checkpoints, verify, compare and remove them");
  command->require_subcommand(1);
  CLI::App& list = add_subcommand(*command, "list", "What there is in a folder of checkpoints; reads no tensors",
                                  options, list_checkpoints);
  add_place(list, "DIR", options.path, "The folder that they were saved to");
  CLI::App& show =
      add_subcommand(*command, "show", "What is in a checkpoint; reads no tensors", options, show_checkpoint);
  add_place(show, "CKPT", options.path, "A checkpoint's folder, or a folder of them, of which it is the newest");
  show.add_flag("--all", options.all, "Every layer's tensors, not once for those that are alike")->group("Output");
  CLI::App& verify =
      add_subcommand(*command, "verify", "Whether every byte is what was written; exit code 1 where one is not",
                     options, verify_checkpoints);
  add_place(verify, "CKPT", options.path, "A checkpoint's folder, or a folder of them, of which it is all");
  CLI::App& diff = add_subcommand(*command, "diff",
                                  "In what two checkpoints differ; exit code 0 where in nothing, 1 where in something",
                                  options, diff_checkpoints);
  add_place(diff, "A", options.path, "A checkpoint's folder, or a folder of them, of which it is the newest");
  add_place(diff, "B", options.other, "Another one");
  CLI::App& prune = add_subcommand(*command, "prune", "Remove old checkpoints; the newest that is whole always stays",
                                   options, prune_checkpoints);
  add_place(prune, "DIR", options.path, "The folder that they were saved to");
  add_number(prune, "--keep", options.keep, "So many of the newest stay", 1)
      ->required()
      ->default_str("")
      ->group("Which stay");
  add_number(prune, "--keep-every", options.keep_every, "Those whose step is a multiple of it stay too", 1)
      ->default_str("")
      ->group("Which stay");
  prune.add_flag("--dry-run", options.dry_run, "Remove nothing, say what would be")->group("Which stay");
  return command;
}

std::ostream* text_of(const CheckpointOptions& options) {
  return is_standard_output(options.json) ? nullptr : &std::cout;
}

void check_output(const CheckpointOptions& options) {
  check_apart({{"the checkpoint", options.path, Place::Use::reads},
               {"the other checkpoint", options.other, Place::Use::reads},
               {"--json", options.json, Place::Use::writes}});
  if (!options.json.empty()) check_writable(options.json);
}

void write_json(const CheckpointOptions& options, const models::Json& json) {
  if (options.json.empty()) return;
  write_file(options.json, json.dump(2, ' ', false, models::Json::error_handler_t::replace) + "\n");
}

void require_folder(const CheckpointOptions& options) {
  if (zero::kind_of(zero::posix_env(), options.path) == zero::PathKind::checkpoint)
    throw zero::ConfigError(zero::in_quotes(options.path) + " is a checkpoint, not a folder of them",
                            "give the folder that it lies in");
}

zero::Checkpoint open_checkpoint(const std::string& path) {
  try {
    return zero::Checkpoint::open(zero::posix_env(), zero::checkpoints_at(zero::posix_env(), path).back());
  } catch (const zero::CheckpointError& error) {
    throw zero::ConfigError(error.what());
  }
}

std::string heading(const zero::Checkpoint& checkpoint) {
  const zero::Manifest& manifest = checkpoint.manifest();
  return zero::escaped(checkpoint.folder()) + ": step " + with_separators(manifest.scalars.steps) + ", " +
         (manifest.plan.empty() ? "" : zero::escaped(manifest.plan) + ", ") + manifest.mesh.text();
}

}  // namespace cli
