#include <gtest/gtest.h>
#include <torch/torch.h>

#include <unistd.h>
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <numbers>
#include <string>
#include <tuple>
#include <vector>

#include "models/llama.h"
#include "zero/error.h"

namespace {

using models::Llama;
using models::LlamaConfig;

LlamaConfig odd_sizes() {
  return {.hidden_size = 24,
          .intermediate_size = 40,
          .num_hidden_layers = 3,
          .num_attention_heads = 4,
          .num_key_value_heads = 2,
          .vocab_size = 37,
          .max_position_embeddings = 32,
          .rope_theta = 500,
          .initializer_range = 0.2};
}

std::int64_t count(const torch::nn::Module& module) {
  std::int64_t sum = 0;
  for (const at::Tensor& parameter : module.parameters()) sum += parameter.numel();
  return sum;
}

at::Tensor random_ids(const LlamaConfig& config, std::int64_t batch, std::int64_t length) {
  return torch::randint(config.vocab_size, {batch, length}, torch::kLong);
}

// Llama in double precision, one sequence, one head and one pair at a time.
class Reference {
 public:
  Reference(const LlamaConfig& config, const torch::nn::Module& module) : config_(config) {
    for (const auto& item : module.named_parameters()) weights_[item.key()] = item.value().detach().to(torch::kDouble);
  }

  at::Tensor logits(const at::Tensor& ids) const {
    at::Tensor x = weight("model.embed_tokens.weight").index_select(0, ids);
    for (std::int64_t i = 0; i < config_.num_hidden_layers; ++i) {
      const std::string layer = "model.layers." + std::to_string(i) + ".";
      x = x + attention(norm(x, layer + "input_layernorm.weight"), layer + "self_attn.");
      x = x + mlp(norm(x, layer + "post_attention_layernorm.weight"), layer + "mlp.");
    }
    const char* head = config_.tie_word_embeddings ? "model.embed_tokens.weight" : "lm_head.weight";
    return norm(x, "model.norm.weight").matmul(weight(head).t());
  }

 private:
  const at::Tensor& weight(const std::string& name) const { return weights_.at(name); }
  at::Tensor project(const at::Tensor& x, const std::string& name) const { return x.matmul(weight(name).t()); }

  at::Tensor norm(const at::Tensor& x, const std::string& name) const {
    return x / (x.square().mean(-1, true) + config_.rms_norm_eps).sqrt() * weight(name);
  }

  at::Tensor mlp(const at::Tensor& x, const std::string& prefix) const {
    const at::Tensor gate = project(x, prefix + "gate_proj.weight");
    return project(gate / (1 + (-gate).exp()) * project(x, prefix + "up_proj.weight"), prefix + "down_proj.weight");
  }

  // Turns the pair (i, i + half) of the head at each position t by t / theta^(i / half).
  at::Tensor rotate(const at::Tensor& head) const {
    at::Tensor turned = head.clone();
    const std::int64_t half = head.size(1) / 2;
    for (std::int64_t t = 0; t < head.size(0); ++t)
      for (std::int64_t i = 0; i < half; ++i) {
        const double angle =
            static_cast<double>(t) * std::pow(config_.rope_theta, -static_cast<double>(i) / static_cast<double>(half));
        turned[t][i] = head[t][i] * std::cos(angle) - head[t][i + half] * std::sin(angle);
        turned[t][i + half] = head[t][i + half] * std::cos(angle) + head[t][i] * std::sin(angle);
      }
    return turned;
  }

  at::Tensor attention(const at::Tensor& x, const std::string& prefix) const {
    const std::int64_t size = config_.head_size();
    const std::int64_t group = config_.num_attention_heads / config_.num_key_value_heads;
    const at::Tensor q = project(x, prefix + "q_proj.weight"), k = project(x, prefix + "k_proj.weight"),
                     v = project(x, prefix + "v_proj.weight");
    std::vector<at::Tensor> heads;
    for (std::int64_t h = 0; h < config_.num_attention_heads; ++h) {
      const at::Tensor query = rotate(q.narrow(1, h * size, size));
      const at::Tensor key = rotate(k.narrow(1, h / group * size, size));
      at::Tensor scores = query.matmul(key.t()) / std::sqrt(static_cast<double>(size));
      scores = scores + torch::full_like(scores, -1e30).triu(1);
      heads.push_back(scores.softmax(-1).matmul(v.narrow(1, h / group * size, size)));
    }
    return project(torch::cat(heads, 1), prefix + "o_proj.weight");
  }

  LlamaConfig config_;
  std::map<std::string, at::Tensor> weights_;
};

TEST(Llama, PresetsHaveTheirPublishedSizes) {
  const std::map<std::string, std::int64_t> sizes = {{"micro", 857216},   {"tiny", 4877568},   {"small", 29893120},
                                                     {"125m", 123587328}, {"350m", 359842816}, {"1b", 1100048384},
                                                     {"7b", 6738415616},  {"70b", 68976648192}};
  ASSERT_EQ(models::llama_presets().size(), sizes.size());
  for (const auto& [name, size] : sizes) {
    const LlamaConfig config = models::llama_preset(name);
    EXPECT_TRUE(config.faults().empty()) << name;
    EXPECT_EQ(models::parameter_count(config), size) << name;
  }
}

TEST(Llama, CountsTheParametersOfTheModule) {
  for (const char* name : {"micro", "tiny", "small"}) {
    const LlamaConfig config = models::llama_preset(name);
    EXPECT_EQ(count(*Llama(config)), models::parameter_count(config)) << name;
  }
  for (const char* name : {"125m", "350m", "1b", "7b"}) {
    LlamaConfig config = models::llama_preset(name);  // the same proportions, an eighth of the width
    config.hidden_size /= 8;
    config.intermediate_size /= 8;
    config.vocab_size /= 8;
    config.head_dim = std::max<std::int64_t>(2, config.hidden_size / config.num_attention_heads / 2 * 2);
    EXPECT_EQ(count(*Llama(config)), models::parameter_count(config)) << name;
  }
}

TEST(Llama, UnknownPresetListsThePresets) {
  try {
    models::llama_preset("huge");
    FAIL();
  } catch (const zero::ConfigError& error) {
    EXPECT_NE(std::string(error.what()).find("'huge'"), std::string::npos);
    EXPECT_NE(error.hint().find("micro, tiny, small, 125m, 350m, 1b, 7b, 70b"), std::string::npos);
  }
}

TEST(Llama, NamesParametersAsHuggingFace) {
  LlamaConfig config = odd_sizes();
  config.num_hidden_layers = 1;
  std::vector<std::string> names;
  for (const auto& item : Llama(config)->named_parameters()) names.push_back(item.key());
  EXPECT_EQ(names, (std::vector<std::string>{
                       "model.embed_tokens.weight", "model.layers.0.input_layernorm.weight",
                       "model.layers.0.self_attn.q_proj.weight", "model.layers.0.self_attn.k_proj.weight",
                       "model.layers.0.self_attn.v_proj.weight", "model.layers.0.self_attn.o_proj.weight",
                       "model.layers.0.post_attention_layernorm.weight", "model.layers.0.mlp.gate_proj.weight",
                       "model.layers.0.mlp.up_proj.weight", "model.layers.0.mlp.down_proj.weight", "model.norm.weight",
                       "lm_head.weight"}));
}

// Key-value heads, explicit head size, tied.
class LlamaShapes : public testing::TestWithParam<std::tuple<int, int, bool>> {
 protected:
  LlamaConfig config() const {
    LlamaConfig config = odd_sizes();
    config.num_key_value_heads = std::get<0>(GetParam());
    config.head_dim = std::get<1>(GetParam());
    config.tie_word_embeddings = std::get<2>(GetParam());
    return config;
  }
};

TEST_P(LlamaShapes, AgreesWithTheReference) {
  torch::manual_seed(1);
  Llama model(config());
  EXPECT_EQ(count(*model), models::parameter_count(config()));
  {
    torch::NoGradGuard no_grad;
    for (at::Tensor& parameter : model->parameters())
      if (parameter.dim() == 1) parameter.uniform_(0.5, 1.5);
  }
  const at::Tensor ids = random_ids(config(), 2, 9);
  const at::Tensor targets = random_ids(config(), 2, 9);
  const at::Tensor logits = model->forward(ids);
  ASSERT_EQ(logits.sizes(), (std::vector<std::int64_t>{2, 9, 37}));
  const Reference reference(config(), *model);
  const at::Tensor expected = torch::stack({reference.logits(ids[0]), reference.logits(ids[1])});
  EXPECT_LT((logits.to(torch::kDouble) - expected).abs().max().item<double>(), 2e-5);
  const at::Tensor loss = -expected.log_softmax(-1).gather(2, targets.unsqueeze(2)).mean();
  EXPECT_NEAR(model->loss(ids, targets).item<double>(), loss.item<double>(), 1e-5);
}

TEST_P(LlamaShapes, IsCausal) {
  torch::manual_seed(2);
  Llama model(config());
  torch::NoGradGuard no_grad;
  const at::Tensor ids = random_ids(config(), 1, 12);
  at::Tensor changed = ids.clone();
  changed[0][7] = (changed[0][7] + 1) % 37;
  const at::Tensor difference = (model->forward(ids) - model->forward(changed)).abs().amax(-1)[0];
  EXPECT_EQ(difference.slice(0, 0, 7).max().item<float>(), 0);
  EXPECT_GT(difference.slice(0, 7).min().item<float>(), 0);
}

TEST_P(LlamaShapes, RunsWithBf16Weights) {
  torch::manual_seed(3);
  Llama model(config());
  const at::Tensor ids = random_ids(config(), 2, 9);
  const double exact = model->loss(ids, ids).item<double>();
  model->to(torch::kBFloat16);
  const at::Tensor loss = model->loss(ids, ids);
  EXPECT_EQ(loss.scalar_type(), torch::kFloat);
  EXPECT_EQ(model->forward(ids).scalar_type(), torch::kBFloat16);
  EXPECT_NEAR(loss.item<double>(), exact, 0.05 * exact);
  loss.backward();
  for (const auto& item : model->named_parameters()) {
    ASSERT_TRUE(item.value().grad().defined()) << item.key();
    EXPECT_TRUE(item.value().grad().isfinite().all().item<bool>()) << item.key();
  }
}

INSTANTIATE_TEST_SUITE_P(All, LlamaShapes,
                         testing::Combine(testing::Values(1, 2, 4), testing::Values(0, 10), testing::Bool()));

TEST(Llama, InitializationFollowsTheSeed) {
  LlamaConfig config = odd_sizes();
  config.initializer_range = 0.02;
  config.vocab_size = 500;
  const auto weights = [&](std::uint64_t seed) {
    torch::manual_seed(seed);
    return torch::nn::utils::parameters_to_vector(Llama(config)->parameters());
  };
  EXPECT_TRUE(weights(5).equal(weights(5)));
  EXPECT_FALSE(weights(5).equal(weights(6)));
  const Llama model(config);
  const at::Tensor table = model->named_parameters()["model.embed_tokens.weight"];
  EXPECT_NEAR(table.std().item<double>(), 0.02, 0.001);
  EXPECT_NEAR(table.mean().item<double>(), 0, 0.001);
  EXPECT_TRUE(model->named_parameters()["model.norm.weight"].equal(torch::ones(24)));
}

TEST(Llama, TrainsAMicroModel) {
  torch::manual_seed(4);
  LlamaConfig config = models::llama_preset("micro");
  Llama model(config);
  torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(3e-3));
  const at::Tensor ids = torch::arange(4 * 33).remainder(61).view({4, 33});
  std::vector<double> losses;
  for (int step = 0; step < 30; ++step) {
    optimizer.zero_grad();
    at::Tensor loss = model->loss(ids.slice(1, 0, 32), ids.slice(1, 1));
    loss.backward();
    optimizer.step();
    losses.push_back(loss.item<double>());
  }
  EXPECT_NEAR(losses.front(), std::log(256), 0.5);
  EXPECT_LT(losses.back(), 0.5 * losses.front());
}

TEST(Llama, RefusesMorePositionsThanItHas) {
  Llama model(odd_sizes());
  EXPECT_THROW(model->forward(random_ids(odd_sizes(), 1, 33)), zero::ConfigError);
}

TEST(Llama, ListsAllFaultsOfItsSizes) {
  LlamaConfig config = odd_sizes();
  config.num_attention_heads = 5;
  try {
    Llama model(config);
    FAIL();
  } catch (const zero::ConfigError& error) {
    const std::string what = error.what();
    EXPECT_NE(what.find("hidden_size 24 does not divide by num_attention_heads 5"), std::string::npos) << what;
    EXPECT_NE(what.find("num_attention_heads 5 does not divide by num_key_value_heads 2"), std::string::npos) << what;
  }
}

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
    return read(R"({"hidden_size": 64, "intermediate_size": 172, "num_hidden_layers": 2,
                    "num_attention_heads": 8, "vocab_size": 100)" +
                (extra.empty() ? "" : ", " + extra) + "}");
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

TEST_F(LlamaFile, RefusesWhatItDoesNotCompute) {
  expect_fault(R"("model_type": "mistral")", R"("model_type" is "mistral", which is not supported)");
  expect_fault(R"("hidden_act": "gelu")", R"("hidden_act" is "gelu", which is not supported)");
  expect_fault(R"("attention_bias": true)", R"("attention_bias" is true, which is not supported)");
  expect_fault(R"("mlp_bias": true)", R"("mlp_bias" is true, which is not supported)");
  expect_fault(R"("attention_dropout": 0.1)", R"("attention_dropout" is 0.1, which is not supported)");
  expect_fault(R"("rope_scaling": {"rope_type": "yarn", "factor": 8.0})", R"("rope_scaling.rope_type" is "yarn")");
  expect_fault(R"("rope_scaling": {"type": "dynamic", "factor": 8.0})", R"("rope_scaling.type" is "dynamic")");
  expect_fault(R"("rope_scaling": {"type": "linear"})", R"("rope_scaling.factor" is missing)");
  expect_fault(R"("rope_scaling": {"rope_type": "linear", "factor": 0})", R"("rope_scaling.factor" is 0, not positive)");
  expect_fault(R"("rope_scaling": {"rope_type": "llama3", "factor": 8.0})",
               R"("rope_scaling.original_max_position_embeddings" is missing)");
  expect_fault(R"("rope_scaling": {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 64,
                   "low_freq_factor": 4, "high_freq_factor": 4})",
               R"("rope_scaling.high_freq_factor" is not above "low_freq_factor")");
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

}  // namespace
