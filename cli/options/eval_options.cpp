#include "cli/options/eval_options.h"

#include <CLI/CLI.hpp>

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
  add_path(command, "--data", options.data, "File or folder, read as bytes of text; *.bin and *.u32 hold tokens")
      ->required()
      ->group(group);
  add_number(command, "--tokens", options.tokens, "Bits of a token in the token file --data: 16 or 32", 16, 32)
      ->check(choice({"16", "32"}))
      ->default_str("")
      ->group(group);
  add_number(command, "--seq", options.seq, "Tokens of a sequence", 1)->group(group);
  add_number(command, "--batch", options.batch, "Sequences that are computed at once", 1)->group(group);
  add_number(command, "--threads", options.threads, "Threads of an operator", 1, kMostThreads)->group(group);
  add_path(command, "--json", options.json, "Also write the result to this file; - is standard output alone")
      ->group("Output");
  command.set_help_flag("-h,--help", "Print this help")->group("Output");
}

}  // namespace cli
