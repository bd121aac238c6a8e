// The model that --model names. No torch.
#pragma once

#include <string>

#include "models/llama_config.h"

namespace cli {

// Throws UsageError for a name that is neither a preset nor a path, zero::ConfigError for a file that cannot be used.
models::LlamaConfig load_model(const std::string& name);

}  // namespace cli
