#include "cli/options/eval_options.h"

#include <CLI/CLI.hpp>

#include "cli/options/device_option.h"
#include "cli/options/validators.h"

namespace cli {

void add_eval_options(CLI::App& command, EvalOptions& options) {
  const std::string group = "Model and data";
  add_path(command, "--model", options.model,
           "Folder with config.json and model.safetensors (or an index), a checkpoint, or a folder of checkpoints, of "
           "which the newest that is whole is taken",
           "FOLDER")
      ->required()
      ->group(group);
  add_data(command, options.data, options.tokens, group)->required();
  add_number(command, "--seq", options.seq, "Tokens of a sequence", 1)->group(group);
  add_number(command, "--batch", options.batch, "Sequences that are computed at once", 1)->group(group);
  add_number(command, "--threads", options.threads, "Threads of an operator", 1, kMostThreads)->group(group);
  add_device(command, options.device, group);
  add_json(command, options.json);
}

}  // namespace cli
