// The model's sizes and the text, as the options name them.
#pragma once

#include "cli/options/options.h"
#include "models/data.h"
#include "models/llama_config.h"

namespace cli {

struct Work {
  models::LlamaConfig config;
  models::Corpus corpus;
};

// Throws UsageError for a name that is neither a preset nor a path, zero::ConfigError for a file or folder
// that is missing or cannot be trained on as asked.
Work load(const RunOptions& options);

}  // namespace cli
