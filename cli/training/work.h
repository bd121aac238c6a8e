// The model's sizes, the text and the weights from files, as the options name them.
#pragma once

#include <string>

#include "cli/options/options.h"
#include "models/data.h"
#include "models/llama.h"
#include "models/llama_config.h"

namespace cli {

struct Work {
  models::LlamaConfig config;
  models::Corpus corpus;
};

// Throws UsageError for a name that is neither a preset nor a path, zero::ConfigError for a file or folder
// that is missing or cannot be trained on as asked.
Work load(const RunOptions& options);

// `weights`: what zero::load_safetensors() reads, and throws for. What older files have beside weights is not looked
// at, as is the head of a model whose head is tied to its embedding.
void load_weights(models::Llama& model, const std::string& weights);

// The model with the weights that --model names, or as it is where it names none.
models::Llama with_weights(models::Llama model, const std::string& name);

}  // namespace cli
