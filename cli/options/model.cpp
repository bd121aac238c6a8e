#include "cli/options/model.h"

#include <algorithm>
#include <filesystem>

#include "base/text.h"
#include "models/json.h"
#include "persist/weight_files.h"

namespace cli {
namespace {

namespace fs = std::filesystem;

bool has(const std::string& folder, const char* name) {
  std::error_code error;
  return fs::exists(fs::path(folder) / name, error);
}

bool has_weights(const std::string& folder) {
  return has(folder, "model.safetensors") || has(folder, "model.safetensors.index.json");
}

bool holds_checkpoints(const std::string& folder) {
  return zero::is_checkpoint(zero::posix_env(), folder) || !zero::checkpoint_steps(folder).empty();
}

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

models::LlamaConfig load_model(const std::string& name, const SharedOptions& options) {
  models::LlamaConfig config = load_model(name);
  config.activations = activations_of(options);
  return config;
}

models::ActivationOptions activations_of(const SharedOptions& options) {
  return {models::recompute_named(options.recompute), options.loss_pieces};
}

models::TokenSource open_data(const std::string& path, int bits) {
  return models::TokenSource::open(path, format_of(bits));
}

std::string weights_of(const std::string& model) {
  const auto presets = models::llama_presets();
  if (std::ranges::count(presets, model) || !has(model, "config.json") || !has_weights(model)) return {};
  return model;
}

std::string starting_weights(const std::string& model, std::uint64_t seed) {
  const std::string folder = weights_of(model);
  return folder.empty() ? "random weights, by --seed " + std::to_string(seed)
                        : "the weights in " + zero::in_quotes(folder);
}

std::string config_of(const zero::Restored& checkpoint) {
  const std::string source = "the user values of checkpoint " + zero::in_quotes(checkpoint.folder);
  const char* const hint = "export and evaluate what zero train saved";
  if (checkpoint.user.empty())
    throw zero::ConfigError(source + " are empty: they do not say of which model it is", hint);
  const models::Json user = models::json_object(checkpoint.user, source);
  const auto model = user.find("model");
  if (model == user.end() || !model->is_object())
    throw zero::ConfigError(source + " have no object \"model\", the config.json of its model", hint);
  return model->dump(2) + "\n";
}

Pretrained find_pretrained(const std::string& path) {
  std::error_code error;
  if (!fs::is_directory(path, error))
    throw UsageError("--model: " + zero::in_quotes(path) + " is no folder: give one with config.json and " +
                     "model.safetensors, or a checkpoint");
  if (const std::string weights = weights_of(path); !weights.empty())
    return {load_model(path), weights, "the weights in " + zero::in_quotes(path)};
  if (!holds_checkpoints(path))
    throw UsageError("--model: the folder " + zero::in_quotes(path) +
                     " has no weights: neither config.json with model.safetensors or model.safetensors.index.json, "
                     "nor a checkpoint");
  const zero::Restored checkpoint = zero::find_checkpoint(path);
  const std::string source = "\"model\" of checkpoint " + zero::in_quotes(checkpoint.folder);
  return {models::llama_from_json(config_of(checkpoint), source), checkpoint.folder,
          "checkpoint " + zero::in_quotes(checkpoint.folder) + ", step " + std::to_string(checkpoint.step)};
}

}  // namespace cli
