// The model that --model names, with weights or without: folders as Hugging Face has them, and checkpoints; and the
// tokens that --data names. No torch.
#pragma once

#include <cstdint>
#include <string>

#include "cli/options/options.h"
#include "models/llama_config.h"
#include "models/tokens.h"
#include "zero/checkpoint.h"

namespace cli {

// A preset, a config.json, or a folder with one. Throws UsageError for a name that is neither a preset nor a path,
// zero::ConfigError for a file that cannot be used.
models::LlamaConfig load_model(const std::string& name);
// The same, computing as the options say.
models::LlamaConfig load_model(const std::string& name, const SharedOptions& options);

models::ActivationOptions activations_of(const SharedOptions& options);

// Throws zero::ConfigError for a file or folder that is missing or not of the format that it should have.
// `bits`: of a token in a token file; 0: by the file's name.
models::TokenSource open_data(const std::string& path, int bits);

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
