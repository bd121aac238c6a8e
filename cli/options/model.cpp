#include "cli/options/model.h"

#include <algorithm>
#include <filesystem>

#include "base/text.h"

namespace cli {
namespace {

models::TokenFormat format_of(int bits) {
  if (bits == 16) return models::TokenFormat::u16;
  return bits == 32 ? models::TokenFormat::u32 : models::TokenFormat::automatic;
}

}  // namespace

models::LlamaConfig load_model(const std::string& name) {
  const auto presets = models::llama_presets();
  if (std::ranges::count(presets, name)) return models::llama_preset(name);
  std::error_code error;
  const std::filesystem::path inside = std::filesystem::path(name) / "config.json";
  if (std::filesystem::exists(inside, error)) return models::llama_from_file(inside);
  if (name.find_first_of("./") != std::string::npos || std::filesystem::exists(name, error))
    return models::llama_from_file(name);
  throw UsageError("--model: " + zero::in_quotes(name) + " is neither a preset (" + zero::joined(presets) +
                   ") nor a file or folder" +
                   zero::did_you_mean(name, std::vector<std::string>(presets.begin(), presets.end())));
}

models::TokenSource open_data(const std::string& path, int bits) {
  return models::TokenSource::open(path, format_of(bits));
}

}  // namespace cli
