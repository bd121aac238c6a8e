#include "models/json.h"
#include "models/llama_config.h"

namespace models {
namespace {

Json rope_json(const RopeScaling& scaling) {
  const bool llama3 = scaling.original_max_position_embeddings > 0;
  if (!llama3 && scaling.factor == 1) return nullptr;
  Json rope{{"rope_type", llama3 ? "llama3" : "linear"}, {"factor", scaling.factor}};
  if (!llama3) return rope;
  rope["original_max_position_embeddings"] = scaling.original_max_position_embeddings;
  rope["low_freq_factor"] = scaling.low_freq_factor;
  rope["high_freq_factor"] = scaling.high_freq_factor;
  return rope;
}

}  // namespace

std::string config_json(const LlamaConfig& config) {
  Json json{{"architectures", Json::array({"LlamaForCausalLM"})},
            {"model_type", "llama"},
            {"torch_dtype", "float32"},
            {"hidden_size", config.hidden_size},
            {"intermediate_size", config.intermediate_size},
            {"num_hidden_layers", config.num_hidden_layers},
            {"num_attention_heads", config.num_attention_heads},
            {"num_key_value_heads", config.num_key_value_heads},
            {"vocab_size", config.vocab_size},
            {"max_position_embeddings", config.max_position_embeddings}};
  if (config.head_dim) json["head_dim"] = config.head_dim;
  json["hidden_act"] = "silu";
  json["attention_bias"] = false;
  json["attention_dropout"] = 0.0;
  json["mlp_bias"] = false;
  json["rms_norm_eps"] = config.rms_norm_eps;
  json["rope_theta"] = config.rope_theta;
  json["rope_scaling"] = rope_json(config.rope_scaling);
  json["initializer_range"] = config.initializer_range;
  json["tie_word_embeddings"] = config.tie_word_embeddings;
  json["bos_token_id"] = nullptr;
  json["eos_token_id"] = nullptr;
  return json.dump(2) + "\n";
}

}  // namespace models
