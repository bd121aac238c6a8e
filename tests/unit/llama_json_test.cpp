// The config.json that we write.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "models/llama_config.h"
#include "zero/error.h"

namespace llama_json_test {

using models::LlamaConfig;

LlamaConfig read_again(const LlamaConfig& config) {
  return models::llama_from_json(models::config_json(config), "test");
}

nlohmann::json json_of(const LlamaConfig& config) {
  return nlohmann::json::parse(models::config_json(config));
}

TEST(LlamaJson, EveryPresetComesBack) {
  for (const std::string_view name : models::llama_presets()) {
    const LlamaConfig config = models::llama_preset(name);
    EXPECT_EQ(read_again(config), config) << name;
  }
}

TEST(LlamaJson, OddSizesComeBack) {
  LlamaConfig config = models::llama_preset("micro");
  config.head_dim = 6;
  config.num_attention_heads = 9;
  config.num_key_value_heads = 3;
  config.max_position_embeddings = 77;
  config.rope_theta = 1234567.125;
  config.rms_norm_eps = 0x1.5bf0a8b145769p-20;
  config.initializer_range = 1.0 / 3;
  config.tie_word_embeddings = true;
  EXPECT_EQ(read_again(config), config);
}

TEST(LlamaJson, ScalingsComeBack) {
  LlamaConfig config = models::llama_preset("tiny");
  config.rope_scaling = {.factor = 2.5};
  EXPECT_EQ(read_again(config), config);
  config.rope_scaling = {
      .factor = 1, .original_max_position_embeddings = 8192, .low_freq_factor = 1.5, .high_freq_factor = 3};
  EXPECT_EQ(read_again(config), config);
}

// The names and types that transformers asks for: "factor" is to be a float.
TEST(LlamaJson, SaysWhatTransformersReads) {
  LlamaConfig config = models::llama_preset("micro");
  config.rope_scaling = {.factor = 8, .original_max_position_embeddings = 64};
  const nlohmann::json json = json_of(config);
  EXPECT_EQ(json["architectures"], nlohmann::json::array({"LlamaForCausalLM"}));
  EXPECT_EQ(json["model_type"], "llama");
  EXPECT_EQ(json["torch_dtype"], "float32");
  EXPECT_EQ(json["rope_scaling"]["rope_type"], "llama3");
  EXPECT_TRUE(json["rope_scaling"]["factor"].is_number_float());
  EXPECT_TRUE(json["rope_scaling"]["original_max_position_embeddings"].is_number_integer());
  EXPECT_TRUE(json["rope_theta"].is_number_float());
  EXPECT_FALSE(json.contains("head_dim"));
  EXPECT_TRUE(json_of(models::llama_preset("micro"))["rope_scaling"].is_null());
}

TEST(LlamaJson, ATextIsCheckedLikeAFile) {
  for (const char* const text : {"", "[]", "{}", R"({"hidden_size": 64, "hidden_size": 64})"}) try {
      models::llama_from_json(text, "the text");
      FAIL() << text;
    } catch (const zero::ConfigError& error) {
      EXPECT_NE(std::string(error.what()).find("the text"), std::string::npos) << error.what();
    }
}

}  // namespace llama_json_test
