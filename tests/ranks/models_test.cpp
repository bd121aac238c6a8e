#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "models/llama.h"
#include "zero/error.h"

namespace models_test {

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
        const double angle = static_cast<double>(t) / config_.rope_scaling.factor *
                             std::pow(config_.rope_theta, -static_cast<double>(i) / static_cast<double>(half));
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

TEST(Llama, AgreesWithTheReferenceWithScaledPositions) {
  LlamaConfig config = odd_sizes();
  config.rope_scaling.factor = 4;
  torch::manual_seed(1);
  Llama model(config);
  const at::Tensor ids = random_ids(config, 1, 9);
  const at::Tensor expected = Reference(config, *model).logits(ids[0]);
  EXPECT_LT((model->forward(ids)[0].to(torch::kDouble) - expected).abs().max().item<double>(), 2e-5);
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

}  // namespace models_test
