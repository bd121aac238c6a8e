// zero checkpoint export: a run's weights as a folder that transformers opens. No torch.
#pragma once

#include <cstdint>
#include <string>

namespace CLI {  // NOLINT(readability-identifier-naming)
class App;
}

namespace cli {

struct ExportOptions {
  std::string checkpoint;  // or a folder of them
  std::string to;
  std::string dtype = "fp32";
  std::uint64_t shard_size = 5'000'000'000;
  std::string json;  // "-" is standard output
};

CLI::App* add_export(CLI::App& checkpoint_command, ExportOptions& options);
int export_checkpoint(const ExportOptions& options);

}  // namespace cli
