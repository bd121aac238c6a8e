// Hugging Face's config.json.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numbers>
#include <string>
#include <vector>

#include "models/llama_config.h"
#include "zero/error.h"

namespace llama_file_test {

using models::LlamaConfig;

class LlamaFile : public testing::Test {
 protected:
  LlamaFile()
      : path_(std::filesystem::path(testing::TempDir()) /
              ("zero-config-" + std::to_string(::getpid()) + "-" +
               testing::UnitTest::GetInstance()->current_test_info()->name() + ".json")) {}
  ~LlamaFile() override { std::filesystem::remove(path_); }

  LlamaConfig read(const std::string& text) const {
    std::ofstream(path_) << text;
    return models::llama_from_file(path_);
  }
  // The sizes of a valid file with `extra` keys, which win over the sizes.
  LlamaConfig read_with(const std::string& extra) const {
    nlohmann::json keys{{"hidden_size", 64},
                        {"intermediate_size", 172},
                        {"num_hidden_layers", 2},
                        {"num_attention_heads", 8},
                        {"vocab_size", 100}};
    keys.update(nlohmann::json::parse("{" + extra + "}"));
    return read(keys.dump());
  }
  void expect_fault(const std::string& extra, const std::string& message) const {
    try {
      read_with(extra);
      FAIL() << extra;
    } catch (const zero::ConfigError& error) {
      const std::string what = error.what();
      EXPECT_NE(what.find(path_.string()), std::string::npos) << what;
      EXPECT_NE(what.find(message), std::string::npos) << what;
      EXPECT_FALSE(error.hint().empty());
    }
  }

  std::filesystem::path path_;
};

TEST_F(LlamaFile, DefaultsAreThoseOfHuggingFace) {
  const LlamaConfig config = read_with(R"("head_dim": null, "rope_scaling": null, "torch_dtype": "float16")");
  EXPECT_EQ(config, (LlamaConfig{.hidden_size = 64,
                                 .intermediate_size = 172,
                                 .num_hidden_layers = 2,
                                 .num_attention_heads = 8,
                                 .num_key_value_heads = 8,
                                 .vocab_size = 100,
                                 .max_position_embeddings = 2048,
                                 .rope_theta = 10000,
                                 .rms_norm_eps = 1e-6,
                                 .tie_word_embeddings = false,
                                 .initializer_range = 0.02}));
}

TEST_F(LlamaFile, ReadsEveryKey) {
  const LlamaConfig config =
      read_with(R"("num_key_value_heads": 2, "max_position_embeddings": 128, "head_dim": 16, "rope_theta": 5e5,
                   "rms_norm_eps": 1e-5, "tie_word_embeddings": true, "initializer_range": 0.01,
                   "model_type": "llama", "hidden_act": "silu", "attention_bias": false)");
  EXPECT_EQ(config.num_key_value_heads, 2);
  EXPECT_EQ(config.max_position_embeddings, 128);
  EXPECT_EQ(config.head_size(), 16);
  EXPECT_EQ(config.rope_theta, 5e5);
  EXPECT_EQ(config.rms_norm_eps, 1e-5);
  EXPECT_TRUE(config.tie_word_embeddings);
  EXPECT_EQ(config.initializer_range, 0.01);
}

TEST_F(LlamaFile, ReadsNestedRopeParameters) {
  EXPECT_EQ(read_with(R"("rope_parameters": {"rope_theta": 500000.0, "rope_type": "default"})").rope_theta, 5e5);
}

// The values are those of Llama 3.1, where the third pair is in between.
TEST_F(LlamaFile, ScalesTheRotaryEmbedding) {
  const LlamaConfig plain = read_with(R"("head_dim": 8, "rope_theta": 500000.0)");
  const std::vector<double> slow = plain.rotary_frequencies();
  ASSERT_EQ(slow.size(), 4u);
  const std::vector<double> linear =
      read_with(R"("head_dim": 8, "rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 4.0})")
          .rotary_frequencies();
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_DOUBLE_EQ(slow[i], std::pow(5e5, -static_cast<double>(i) / 4));
    EXPECT_DOUBLE_EQ(linear[i], slow[i] / 4);
  }
  const std::vector<double> llama3 =
      read_with(R"("head_dim": 8, "rope_parameters": {"rope_theta": 500000.0, "rope_type": "llama3", "factor": 8.0,
                   "original_max_position_embeddings": 8192, "low_freq_factor": 1.0, "high_freq_factor": 4.0})")
          .rotary_frequencies();
  EXPECT_DOUBLE_EQ(llama3[0], 1);
  EXPECT_DOUBLE_EQ(llama3[1], slow[1]);
  const double wavelength = 2 * std::numbers::pi / slow[2], smooth = (8192 / wavelength - 1) / 3;
  ASSERT_GT(smooth, 0);
  ASSERT_LT(smooth, 1);
  EXPECT_DOUBLE_EQ(llama3[2], (1 - smooth) * slow[2] / 8 + smooth * slow[2]);
  EXPECT_DOUBLE_EQ(llama3[3], slow[3] / 8);
}

TEST_F(LlamaFile, AnEmptyScalingIsNone) {
  const LlamaConfig config = read_with(R"("rope_scaling": {}, "rope_parameters": {"rope_type": "linear", "factor": 2.0,
                                          "rope_theta": 7.0})");
  EXPECT_EQ(config.rope_scaling.factor, 2);
  EXPECT_EQ(config.rope_theta, 7);
}

TEST_F(LlamaFile, ScalingIsCheckedWhereverItComesFrom) {
  LlamaConfig config = models::llama_preset("micro");
  config.rope_scaling.factor = 0;
  EXPECT_EQ(config.faults().size(), 1u);
  config.rope_scaling = {.factor = 8, .original_max_position_embeddings = 64, .low_freq_factor = 4};
  EXPECT_EQ(config.faults().size(), 1u);
}

TEST_F(LlamaFile, FaultsNameFileAndKey) {
  expect_fault(R"("num_attention_heads": "8")", R"("num_attention_heads" is "8", not an integer)");
  expect_fault(R"("hidden_size": 64.5)", R"("hidden_size" is 64.5, not an integer)");
  expect_fault(R"("rope_theta": true)", R"("rope_theta" is true, not a number)");
  expect_fault(R"("tie_word_embeddings": 1)", R"("tie_word_embeddings" is 1, not true or false)");
  expect_fault(R"("vocab_size": 0)", "vocab_size is 0, not positive");
  expect_fault(R"("vocab_size": null)", R"("vocab_size" is missing)");
  expect_fault(R"("hidden_size": 60)", "hidden_size 60 does not divide by num_attention_heads 8");
  expect_fault(R"("num_key_value_heads": 3)", "num_attention_heads 8 does not divide by num_key_value_heads 3");
  expect_fault(R"("hidden_size": 72)", "head_dim 9 is odd");
  expect_fault(R"("head_dim": 7)", "head_dim 7 is odd");
}

TEST_F(LlamaFile, SizesThatCannotBeCountedAreFaults) {
  expect_fault(R"("vocab_size": 9223372036854775808)", R"("vocab_size" is 9223372036854775808, too large)");
  expect_fault(R"("vocab_size": -9223372036854775808)", R"("vocab_size" is -9223372036854775808)");
  expect_fault(R"("vocab_size": 9223372036854775807)", "more than 1e15 parameters");
  expect_fault(R"("num_hidden_layers": 4611686018427387904)", "more than 1e15 parameters");
  expect_fault(R"("num_hidden_layers": 100001)", "more than 100000 layers");
  expect_fault(R"("rope_scaling": {"rope_type": "llama3", "factor": 8, "original_max_position_embeddings": 1e3})",
               R"("rope_scaling.original_max_position_embeddings" is 1000.0, not an integer)");
}

TEST_F(LlamaFile, RefusesWhatItDoesNotCompute) {
  expect_fault(R"("model_type": "mistral")", R"("model_type" is "mistral", which is not supported)");
  expect_fault(R"("hidden_act": "gelu")", R"("hidden_act" is "gelu", which is not supported)");
  expect_fault(R"("attention_bias": true)", R"("attention_bias" is true, which is not supported)");
  expect_fault(R"("mlp_bias": true)", R"("mlp_bias" is true, which is not supported)");
  expect_fault(R"("attention_dropout": 0.1)", R"("attention_dropout" is 0.1, which is not supported)");
  expect_fault(R"("rope_scaling": {"rope_type": "yarn", "factor": 8.0})", R"("rope_scaling.rope_type" is "yarn")");
  expect_fault(R"("rope_scaling": {"type": "dynamic", "factor": 8.0})", R"("rope_scaling.type" is "dynamic")");
  expect_fault(R"("rope_scaling": {"type": "linear"})", R"("rope_scaling.factor" is missing)");
  expect_fault(R"("rope_scaling": {"rope_type": "linear", "factor": 0})",
               R"("rope_scaling.factor" is 0, not positive)");
  expect_fault(R"("rope_scaling": {"rope_type": "llama3", "factor": 8.0})",
               R"("rope_scaling.original_max_position_embeddings" is missing)");
  expect_fault(R"("rope_scaling": {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 64,
                   "low_freq_factor": 4, "high_freq_factor": 4})",
               "rope_scaling.high_freq_factor is not above low_freq_factor");
  expect_fault(R"("rope_parameters": {"rope_theta": "x"})", R"("rope_parameters.rope_theta" is "x", not a number)");
  expect_fault(R"("rope_parameters": 3)", R"("rope_parameters" is 3, not an object)");
}

TEST_F(LlamaFile, RefusesAFileThatIsNoObject) {
  EXPECT_THROW(models::llama_from_file(path_), zero::ConfigError);
  EXPECT_THROW(models::llama_from_file(testing::TempDir()), zero::ConfigError);
  EXPECT_THROW(read("{"), zero::ConfigError);
  EXPECT_THROW(read("[1]"), zero::ConfigError);
  EXPECT_THROW(read(R"({"hidden_size": 64})"), zero::ConfigError);
}

}  // namespace llama_file_test
