#include "model.h"

#include <algorithm>
#include <filesystem>

#include "options.h"

namespace cli {

models::LlamaConfig load_model(const std::string& name) {
  const auto presets = models::llama_presets();
  if (std::find(presets.begin(), presets.end(), name) != presets.end()) return models::llama_preset(name);
  if (name.find_first_of("./") != std::string::npos || std::filesystem::exists(name))
    return models::llama_from_file(name);
  std::string list;
  for (const auto preset : presets) list += (list.empty() ? "" : ", ") + std::string(preset);
  throw UsageError("--model: '" + name + "' is neither a preset (" + list + ") nor a file");
}

}  // namespace cli
