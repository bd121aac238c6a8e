// Models that have weights: folders as Hugging Face has them, and checkpoints. No torch.
#pragma once

#include <string>

#include "models/llama_config.h"
#include "zero/checkpoint.h"

namespace cli {

// What zero::load_safetensors() is to read where --model is a folder with weights beside its config.json; else empty.
std::string weights_of(const std::string& model);
// Which these are, in words.
std::string starting_weights(const std::string& model, std::uint64_t seed);

// The config.json of the model that a checkpoint is of, which is "model" of its user values. Throws zero::ConfigError,
// naming the checkpoint, where it has none.
std::string config_of(const zero::Restored& checkpoint);

struct Pretrained {
  models::LlamaConfig config;
  std::string weights;  // for zero::load_safetensors()
  std::string source;   // in words
};

// A folder of Hugging Face's, a checkpoint, or the newest whole one of a folder of checkpoints. Throws UsageError for
// what is neither, zero::ConfigError and zero::CheckpointError for what is incomplete or damaged.
Pretrained find_pretrained(const std::string& path);

}  // namespace cli
