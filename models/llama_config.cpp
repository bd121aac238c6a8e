#include "models/llama_config.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numbers>
#include <utility>

#include "base/text.h"
#include "models/json.h"
#include "zero/error.h"

namespace models {
namespace {

struct Preset {
  std::string_view name;
  LlamaConfig config;
};

LlamaConfig sizes(std::int64_t hidden, std::int64_t intermediate, std::int64_t layers, std::int64_t heads,
                  std::int64_t vocab) {
  return {.hidden_size = hidden,
          .intermediate_size = intermediate,
          .num_hidden_layers = layers,
          .num_attention_heads = heads,
          .num_key_value_heads = heads,
          .vocab_size = vocab,
          .rms_norm_eps = 1e-5};
}

LlamaConfig tied(LlamaConfig config) {
  config.tie_word_embeddings = true;
  return config;
}

LlamaConfig grouped(LlamaConfig config, std::int64_t key_value_heads) {
  config.num_key_value_heads = key_value_heads;
  return config;
}

LlamaConfig positions(LlamaConfig config, std::int64_t count) {
  config.max_position_embeddings = count;
  return config;
}

// Vocabulary 256: bytes. 50304: GPT-2's tokens, as in llm.c's files, padded. 1b: TinyLlama. 7b and 70b: Llama 2.
std::array<Preset, 8> presets() {
  return {{{"micro", sizes(128, 344, 4, 4, 256)},
           {"tiny", sizes(256, 688, 6, 8, 256)},
           {"small", sizes(512, 1408, 8, 8, 4096)},
           {"125m", tied(sizes(768, 2048, 12, 12, 50304))},
           {"350m", tied(sizes(1024, 2816, 24, 16, 50304))},
           {"1b", grouped(sizes(2048, 5632, 22, 32, 32000), 4)},
           {"7b", positions(sizes(4096, 11008, 32, 32, 32000), 4096)},
           {"70b", positions(grouped(sizes(8192, 28672, 80, 64, 32000), 8), 4096)}}};
}

// Typed access to one JSON object; null counts as absent, as Hugging Face writes it.
class Keys {
 public:
  Keys(const Json& object, std::string source, std::string prefix = {})
      : object_(object), source_(std::move(source)), prefix_(std::move(prefix)) {}

  bool empty() const { return object_.empty(); }
  bool has(const char* key) const { return find(key) != nullptr; }

  std::int64_t integer(const char* key) const {
    if (!has(key)) fail(key, "is missing", "add it");
    return integer(key, 0);
  }
  std::int64_t integer(const char* key, std::int64_t fallback) const {
    constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max();  // what is too small has a fault of its own
    return has(key) ? integer_of(*find(key), -most, most, source_, prefix_ + key) : fallback;
  }
  double positive(const char* key) const {
    if (!has(key)) fail(key, "is missing", "add it");
    const double value = number(key, 0);
    if (!(value > 0)) fail(key, "is " + shown(*find(key)) + ", not positive", "correct it");
    return value;
  }
  double number(const char* key, double fallback) const { return typed(key, fallback, &Json::is_number, "a number"); }
  bool boolean(const char* key, bool fallback) const {
    return typed(key, fallback, &Json::is_boolean, "true or false");
  }
  std::string text(const char* key, const std::string& fallback) const {
    return typed(key, fallback, &Json::is_string, "a string");
  }
  Keys object(const char* key) const {
    const Json* value = find(key);
    if (!value->is_object()) fail(key, "is " + shown(*value) + ", not an object", "correct it");
    return Keys(*value, source_, prefix_ + key + ".");
  }
  void require(bool supported, const char* key, const char* want) const {
    if (!supported) fail(key, "is " + shown(*find(key)) + ", which is not supported", std::string("use ") + want);
  }
  [[noreturn]] void fail(const char* key, const std::string& what, const std::string& hint) const {
    throw zero::ConfigError(zero::shown(source_) + ": \"" + prefix_ + key + "\" " + what, hint);
  }

 private:
  const Json* find(const char* key) const {
    auto found = object_.find(key);
    return found == object_.end() || found->is_null() ? nullptr : &*found;
  }
  template <class T>
  T typed(const char* key, T fallback, bool (Json::*is)() const noexcept, const char* type) const {
    const Json* value = find(key);
    if (!value) return fallback;
    if (!(value->*is)()) fail(key, "is " + shown(*value) + ", not " + type, "correct it");
    return value->get<T>();
  }

  const Json& object_;
  std::string source_;
  std::string prefix_;
};

void refuse_unsupported(const Keys& keys) {
  keys.require(keys.text("model_type", "llama") == "llama", "model_type", "\"llama\"");
  keys.require(keys.text("hidden_act", "silu") == "silu", "hidden_act", "\"silu\"");
  keys.require(!keys.boolean("attention_bias", false), "attention_bias", "false");
  keys.require(!keys.boolean("mlp_bias", false), "mlp_bias", "false");
  keys.require(keys.number("attention_dropout", 0) == 0, "attention_dropout", "0");
}

// {"rope_type": "llama3", "factor": 8, ...}; files of before 2024 say "type".
RopeScaling rope_scaling(const Keys& rope) {
  const char* const key = rope.has("rope_type") ? "rope_type" : "type";
  const std::string type = rope.text(key, "default");
  const bool llama3 = type == "llama3";
  rope.require(llama3 || type == "linear" || type == "default", key, "\"default\", \"linear\" or \"llama3\"");
  RopeScaling scaling;
  if (type == "default") return scaling;
  scaling.factor = rope.positive("factor");
  if (!llama3) return scaling;
  scaling.original_max_position_embeddings = rope.integer("original_max_position_embeddings");
  scaling.low_freq_factor = rope.positive("low_freq_factor");
  scaling.high_freq_factor = rope.positive("high_freq_factor");
  if (scaling.original_max_position_embeddings < 1)
    rope.fail("original_max_position_embeddings", "is not positive", "correct it");
  return scaling;
}

// "rope_theta" and "rope_scaling", or since version 5 both in "rope_parameters"; where both are, the former wins.
void read_rope(const Keys& keys, LlamaConfig& config) {
  config.rope_theta = keys.number("rope_theta", 10000);
  for (const char* nested : {"rope_scaling", "rope_parameters"}) {
    if (!keys.has(nested) || keys.object(nested).empty()) continue;
    const Keys rope = keys.object(nested);
    rope.require(rope.number("partial_rotary_factor", 1) == 1, "partial_rotary_factor", "1");
    config.rope_theta = rope.number("rope_theta", config.rope_theta);
    config.rope_scaling = rope_scaling(rope);
    return;
  }
}

LlamaConfig read(const Keys& keys) {
  LlamaConfig config;
  config.hidden_size = keys.integer("hidden_size");
  config.intermediate_size = keys.integer("intermediate_size");
  config.num_hidden_layers = keys.integer("num_hidden_layers");
  config.num_attention_heads = keys.integer("num_attention_heads");
  config.vocab_size = keys.integer("vocab_size");
  config.num_key_value_heads = keys.integer("num_key_value_heads", config.num_attention_heads);
  config.max_position_embeddings = keys.integer("max_position_embeddings", config.max_position_embeddings);
  config.head_dim = keys.integer("head_dim", 0);
  read_rope(keys, config);
  config.rms_norm_eps = keys.number("rms_norm_eps", config.rms_norm_eps);
  config.tie_word_embeddings = keys.boolean("tie_word_embeddings", config.tie_word_embeddings);
  config.initializer_range = keys.number("initializer_range", config.initializer_range);
  return config;
}

LlamaConfig checked(const Json& parsed, const std::string& source) {
  const Keys keys(parsed, source);
  refuse_unsupported(keys);
  LlamaConfig config = read(keys);
  validate(config, source);
  return config;
}

void check_positive(const LlamaConfig& config, std::vector<std::string>& faults) {
  const std::pair<const char*, std::int64_t> counts[] = {{"hidden_size", config.hidden_size},
                                                         {"intermediate_size", config.intermediate_size},
                                                         {"num_hidden_layers", config.num_hidden_layers},
                                                         {"num_attention_heads", config.num_attention_heads},
                                                         {"num_key_value_heads", config.num_key_value_heads},
                                                         {"vocab_size", config.vocab_size},
                                                         {"max_position_embeddings", config.max_position_embeddings},
                                                         {"loss_pieces", config.activations.loss_pieces}};
  for (const auto& [key, value] : counts)
    if (value < 1) faults.push_back(std::string(key) + " is " + std::to_string(value) + ", not positive");
  const std::pair<const char*, double> reals[] = {{"rope_theta", config.rope_theta},
                                                  {"rms_norm_eps", config.rms_norm_eps},
                                                  {"initializer_range", config.initializer_range}};
  for (const auto& [key, value] : reals)
    if (!(value > 0)) faults.push_back(std::string(key) + " is " + std::to_string(value) + ", not positive");
}

void check_rope_scaling(const RopeScaling& scaling, std::vector<std::string>& faults) {
  if (!(scaling.factor > 0))
    faults.push_back("rope_scaling.factor is " + std::to_string(scaling.factor) + ", not positive");
  const bool ordered = scaling.high_freq_factor > scaling.low_freq_factor && scaling.low_freq_factor > 0;
  if (scaling.original_max_position_embeddings > 0 && !ordered)
    faults.emplace_back("rope_scaling.high_freq_factor is not above low_freq_factor, or that is not positive");
}

void check_heads(const LlamaConfig& config, std::vector<std::string>& faults) {
  const std::string heads = "num_attention_heads " + std::to_string(config.num_attention_heads);
  if (config.head_dim < 0) faults.push_back("head_dim is " + std::to_string(config.head_dim) + ", not positive");
  if (!config.head_dim && config.hidden_size % config.num_attention_heads != 0)
    faults.push_back("hidden_size " + std::to_string(config.hidden_size) + " does not divide by " + heads);
  else if (config.head_size() % 2 != 0)
    faults.push_back("head_dim " + std::to_string(config.head_size()) + " is odd; rotary embedding turns pairs");
  if (config.num_attention_heads % config.num_key_value_heads != 0)
    faults.push_back(heads + " does not divide by num_key_value_heads " + std::to_string(config.num_key_value_heads));
}

// By floating point, which does not overflow as the integers would.
void check_count(const LlamaConfig& config, std::vector<std::string>& faults) {
  constexpr double most = 1e15, most_layers = 1e5;
  const auto size = [](std::int64_t value) { return static_cast<double>(value); };
  const double head = size(config.head_size());
  const double widths = 2 * (size(config.num_attention_heads) + size(config.num_key_value_heads)) * head +
                        3 * size(config.intermediate_size);
  const double layers = size(config.num_hidden_layers);
  if (!(size(config.hidden_size) * (layers * widths + 2 * size(config.vocab_size)) <= most && layers <= most_layers))
    faults.emplace_back("these sizes make more than 1e15 parameters, or more than 100000 layers");
}

}  // namespace

std::vector<double> LlamaConfig::rotary_frequencies() const {
  const RopeScaling& scaling = rope_scaling;
  std::vector<double> frequencies;
  for (std::int64_t i = 0; i < head_size(); i += 2) {
    const double frequency = std::pow(rope_theta, -static_cast<double>(i) / static_cast<double>(head_size()));
    const double turns =
        frequency * static_cast<double>(scaling.original_max_position_embeddings) / (2 * std::numbers::pi);
    const double above = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor);
    const double kept = std::clamp(above, 0.0, 1.0);
    frequencies.push_back(frequency * (kept + (1 - kept) / scaling.factor));
  }
  return frequencies;
}

std::vector<std::string> LlamaConfig::faults() const {
  std::vector<std::string> found;
  check_positive(*this, found);
  check_rope_scaling(rope_scaling, found);
  if (found.empty()) check_heads(*this, found);
  if (found.empty()) check_count(*this, found);
  return found;
}

LlamaConfig part_of(const LlamaConfig& config, int ranks) {
  if (ranks == 1) return config;
  LlamaConfig part = config;
  part.head_dim = config.head_size();
  std::vector<std::string> odd;
  const auto divide = [&](std::int64_t& size, const char* key) {
    if (size % ranks != 0) odd.push_back(key + (" " + std::to_string(size)));
    size /= ranks;
  };
  divide(part.num_attention_heads, "num_attention_heads");
  divide(part.num_key_value_heads, "num_key_value_heads");
  divide(part.intermediate_size, "intermediate_size");
  divide(part.vocab_size, "vocab_size");
  if (odd.empty()) return part;
  throw zero::ConfigError(std::to_string(ranks) + " ranks of the tensor axis do not divide " + zero::joined(odd, ", "),
                          "give as many as divide each of them");
}

void validate(const LlamaConfig& config, std::string_view source) {
  const std::vector<std::string> faults = config.faults();
  if (!faults.empty())
    throw zero::ConfigError(zero::shown(source) + ": " + zero::joined(faults, "; "), "correct these sizes");
}

LlamaConfig llama_preset(std::string_view name) {
  for (const Preset& preset : presets())
    if (preset.name == name) return preset.config;
  throw zero::ConfigError("no model is called " + zero::in_quotes(name), "use one of " + zero::joined(llama_presets()));
}

std::vector<std::string_view> llama_presets() {
  std::vector<std::string_view> names;
  for (const Preset& preset : presets()) names.push_back(preset.name);
  return names;
}

std::vector<std::string_view> recomputes() {
  return {"none", "layers", "selective"};
}

std::string_view name(Recompute recompute) {
  return recomputes()[static_cast<std::size_t>(recompute)];
}

Recompute recompute_named(std::string_view name) {
  const std::vector<std::string_view> names = recomputes();
  const auto found = std::ranges::find(names, name);
  if (found == names.end())
    throw zero::ConfigError("nothing to compute again is called " + zero::in_quotes(name),
                            "use one of " + zero::joined(names));
  return static_cast<Recompute>(found - names.begin());
}

LlamaConfig llama_from_file(const std::filesystem::path& path) {
  const char* const hint = "give a Hugging Face style config.json, a folder with one, or the name of a preset";
  return checked(json_file(path.string(), hint), path.string());
}

LlamaConfig llama_from_json(const std::string& text, const std::string& source) {
  return checked(json_object(text, source), source);
}

std::int64_t parameter_count(const LlamaConfig& config) {
  const std::int64_t hidden = config.hidden_size;
  const std::int64_t query = config.num_attention_heads * config.head_size();
  const std::int64_t key_value = config.num_key_value_heads * config.head_size();
  const std::int64_t attention = 2 * hidden * (query + key_value);
  const std::int64_t mlp = 3 * hidden * config.intermediate_size;
  const std::int64_t tables = config.tie_word_embeddings ? 1 : 2;
  return config.num_hidden_layers * (attention + mlp + 2 * hidden) + hidden + tables * config.vocab_size * hidden;
}

}  // namespace models
