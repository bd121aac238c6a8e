// The model that --model names, and the tokens that --data does. No torch.
#pragma once

#include <string>

#include "cli/options/options.h"
#include "models/llama_config.h"
#include "models/tokens.h"

namespace cli {

// A preset, a config.json, or a folder with one. Throws UsageError for a name that is neither a preset nor a path,
// zero::ConfigError for a file that cannot be used.
models::LlamaConfig load_model(const std::string& name);

// Throws zero::ConfigError for a file or folder that is missing or not of the format that it should have.
// `bits`: of a token in a token file; 0: by the file's name.
models::TokenSource open_data(const std::string& path, int bits);

}  // namespace cli
