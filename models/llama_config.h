// Sizes of a Llama-style language model: presets, and Hugging Face's config.json. No torch.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace models {

// How rotary embedding turns slower than by rope_theta, for positions beyond those of the training before.
struct RopeScaling {
  double factor = 1;  // 1: not at all
  // Llama 3's: pairs that turn more than high_freq_factor times within the positions of old keep their speed, those
  // that turn less than low_freq_factor times have theirs divided by the factor, and between them it goes over. Without
  // positions of old, linear: all are divided.
  std::int64_t original_max_position_embeddings = 0;
  double low_freq_factor = 1;
  double high_freq_factor = 4;

  bool operator==(const RopeScaling&) const = default;
};

// What of the layers is computed again in backward instead of being kept: nothing; each layer, of which its input is
// kept; what is large and cheap, SwiGLU. Of attention there is nothing to gain: its kernel keeps no scores. Norms apart
// from what else is added to their input's gradient would have it added up in another order.
enum class Recompute : std::uint8_t { none, layers, selective };

// How a model computes, for its activations' sake. Sizes and weights have nothing to do with it, and no config.json.
struct ActivationOptions {
  Recompute recompute = Recompute::none;
  std::int64_t loss_pieces = 1;  // of the tokens, for zero::cross_entropy

  bool operator==(const ActivationOptions&) const = default;
};

// A planner goes through each; what is beyond them is a slip.
inline constexpr std::int64_t kMostLossPieces = 4096;

// Named as in Hugging Face's config.json.
struct LlamaConfig {
  std::int64_t hidden_size = 0;
  std::int64_t intermediate_size = 0;
  std::int64_t num_hidden_layers = 0;
  std::int64_t num_attention_heads = 0;
  std::int64_t num_key_value_heads = 0;
  std::int64_t vocab_size = 0;
  std::int64_t max_position_embeddings = 2048;
  std::int64_t head_dim = 0;  // 0: hidden_size / num_attention_heads
  double rope_theta = 10000;
  RopeScaling rope_scaling = {};
  double rms_norm_eps = 1e-6;
  bool tie_word_embeddings = false;
  double initializer_range = 0.02;
  ActivationOptions activations = {};

  std::int64_t head_size() const { return head_dim ? head_dim : hidden_size / num_attention_heads; }
  // By how much each pair of a head turns from one position to the next: head_size() / 2 angles.
  std::vector<double> rotary_frequencies() const;

  // Everything that is wrong with the sizes, one sentence each, the key first.
  std::vector<std::string> faults() const;

  bool operator==(const LlamaConfig&) const = default;
};

// Throws zero::ConfigError with all faults at once; `source` says whose they are.
void validate(const LlamaConfig& config, std::string_view source);

// What each of `ranks` ranks of a tensor axis has of the model: of its heads, of its MLPs and of its vocabulary as
// many. Throws zero::ConfigError, listing what they do not divide.
LlamaConfig part_of(const LlamaConfig& config, int ranks);

// micro, tiny, small, 125m, 350m, 1b, 7b, 70b. Throws zero::ConfigError for another name, listing these.
LlamaConfig llama_preset(std::string_view name);
std::vector<std::string_view> llama_presets();

// none, layers, selective. Throws zero::ConfigError for another name, listing these.
Recompute recompute_named(std::string_view name);
std::vector<std::string_view> recomputes();
std::string_view name(Recompute recompute);

// Reads a config.json. Throws zero::ConfigError, naming file and key, for what is missing, malformed,
// or asks for something that models::Llama does not compute.
LlamaConfig llama_from_file(const std::filesystem::path& path);
// The same of a text; `source` says whose it is.
LlamaConfig llama_from_json(const std::string& text, const std::string& source);

// The text of a config.json that transformers opens with AutoModelForCausalLM, and llama_from_json() reads as the same
// sizes. It says that weights are in fp32 ("torch_dtype"), and names no token that begins or ends a text.
std::string config_json(const LlamaConfig& config);

std::int64_t parameter_count(const LlamaConfig& config);

}  // namespace models
