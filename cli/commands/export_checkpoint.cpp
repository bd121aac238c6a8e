#include "cli/commands/export_checkpoint.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <iostream>
#include <optional>
#include <vector>

#include "base/text.h"
#include "cli/files.h"
#include "cli/options/model.h"
#include "cli/options/validators.h"
#include "cli/report/format.h"
#include "cli/report/progress.h"
#include "models/schema.h"
#include "zero/safetensors.h"

namespace cli {
namespace {

// As transformers writes it.
std::string config_for(const zero::Restored& checkpoint, zero::Dtype dtype) {
  models::Json config = models::json_object(config_of(checkpoint), "\"model\" of checkpoint " + checkpoint.folder);
  config.erase("dtype");
  config["torch_dtype"] = dtype == zero::Dtype::bf16 ? "bfloat16" : "float32";
  return config.dump(2) + "\n";
}

struct Exported {
  std::vector<std::string> files;  // by name
  std::int64_t bytes = 0;
};

Exported exported_to(const std::string& folder) {
  Exported exported;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    exported.files.push_back(entry.path().filename().string());
    exported.bytes += static_cast<std::int64_t>(entry.file_size());
  }
  std::ranges::sort(exported.files);
  return exported;
}

std::string json_of(const ExportOptions& options, const zero::Restored& checkpoint, const Exported& exported) {
  models::Json json = models::stamped(models::kExport);
  json["checkpoint"] = checkpoint.folder;
  json["step"] = checkpoint.step;
  json["folder"] = options.to;
  json["dtype"] = options.dtype;
  json["files"] = exported.files;
  json["bytes"] = exported.bytes;
  return json.dump(2) + "\n";
}

}  // namespace

CLI::App* add_export(CLI::App& checkpoint_command, ExportOptions& options) {
  CLI::App* const command = checkpoint_command.add_subcommand(
      "export", "Write a checkpoint's weights as a folder that Hugging Face's transformers opens");
  const std::string group = "Weights";
  add_path(*command, "CHECKPOINT", options.checkpoint,
           "Of zero train, or a folder of them, of which the newest that is whole is taken", "FOLDER")
      ->required()
      ->group(group);
  add_path(*command, "--to", options.to, "Folder to write, which is not there yet", "FOLDER")->required()->group(group);
  add_choice(*command, "--dtype", options.dtype, "Of the weights", {"fp32", "bf16"})->group(group);
  add_size(*command, "--max-shard-size", options.shard_size, "Of a file of weights: 5GB, 200MiB")->group(group);
  add_json(*command, options.json);
  return command;
}

int export_checkpoint(const ExportOptions& options) {
  if (!options.json.empty()) check_writable(options.json);
  const zero::Restored checkpoint = zero::find_checkpoint(options.checkpoint);
  const zero::Dtype dtype = options.dtype == "bf16" ? zero::Dtype::bf16 : zero::Dtype::f32;
  const std::string config = config_for(checkpoint, dtype);
  models::llama_from_json(config, "\"model\" of checkpoint " + zero::in_quotes(checkpoint.folder));
  constexpr std::int64_t mebibyte = std::int64_t{1} << 20;
  std::optional<Progress> progress;
  const auto show = [&](std::int64_t done, std::int64_t all) {
    if (!progress) progress.emplace("export", (all + mebibyte - 1) / mebibyte);
    progress->show(done / mebibyte, human_bytes(done));
  };
  zero::export_safetensors(checkpoint.folder, options.to,
                           {.dtype = dtype,
                            .file_bytes = static_cast<std::int64_t>(options.shard_size),
                            .texts = {{"config.json", config}},
                            .progress = show});
  progress.reset();
  const Exported exported = exported_to(options.to);
  (is_standard_output(options.json) ? std::cerr : std::cout)
      << "step " << checkpoint.step << " of " << zero::in_quotes(checkpoint.folder) << " in " << options.dtype << ": "
      << human_bytes(exported.bytes) << " in " << exported.files.size() << " files in " << zero::in_quotes(options.to)
      << std::endl;
  if (!options.json.empty()) write_file(options.json, json_of(options, checkpoint, exported));
  return 0;
}

}  // namespace cli
