// What is cut over a tensor axis by itself, of modules as others write them.
#include <torch/torch.h>

#include "harness.h"
#include "models/llama.h"

namespace zero::test::tensor_automatic_test {

using at::Tensor;
using torch::nn::Embedding;
using torch::nn::LayerNorm;
using torch::nn::LayerNormOptions;
using torch::nn::Linear;

// "name 0" for each parameter that is cut, by its dimension.
std::string cuts_of(const torch::nn::Module& module, const TensorRule& rule) {
  std::string text;
  for (const auto& item : module.named_parameters())
    if (const auto cut = rule({item.key(), item.value().sizes().vec(), false, false}))
      text += (text.empty() ? "" : ", ") + item.key() + (*cut == TensorCut::column ? " 0" : " 1");
  return text;
}

template <class Model>
std::string cuts_of(Model& model, int ranks) {
  model.to(device_of_rank());
  return cuts_of(model, tensor_automatic(model, ranks, [&] { model.loss(0).backward(); }));
}

// A layer of Llama by the names of somebody else, with norms of its queries, and gates.
struct LayerImpl : torch::nn::Module {
  static constexpr std::int64_t kSize = 32, kHeads = 4;
  LayerImpl() {
    for (const char* const name : {"alpha", "beta", "gamma", "delta"})
      of_attention.push_back(register_module(name, Linear(torch::nn::LinearOptions(kSize, kSize).bias(false))));
    gate = register_module("gate", Linear(kSize, 3 * kSize));
    wide = register_module("wide", Linear(kSize, 3 * kSize));
    back = register_module("back", Linear(3 * kSize, kSize));
    before = register_module("before", LayerNorm(LayerNormOptions({kSize})));
    behind = register_module("behind", LayerNorm(LayerNormOptions({kSize})));
    of_heads = register_module("of_heads", LayerNorm(LayerNormOptions({kSize / kHeads})));
  }
  Tensor heads(const Tensor& x) { return x.view({x.size(0), -1, kHeads, kSize / kHeads}); }
  Tensor forward(const Tensor& x) {
    const Tensor y = before(x);
    const Tensor q = of_heads(heads(of_attention[1](y))), k = heads(of_attention[2](y)), v = heads(of_attention[0](y));
    const Tensor attended = at::scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2));
    const Tensor after = x + of_attention[3](attended.transpose(1, 2).flatten(2));
    const Tensor z = behind(after);
    return after + back(torch::silu(gate(z)) * wide(z));
  }
  std::vector<Linear> of_attention;
  Linear gate{nullptr}, wide{nullptr}, back{nullptr};
  LayerNorm before{nullptr}, behind{nullptr}, of_heads{nullptr};
};
TORCH_MODULE(Layer);

struct Decoder : torch::nn::Module {
  static constexpr std::int64_t kVocabulary = 512;
  explicit Decoder(bool tied = false, int depth = 2) {
    table = register_module("table", Embedding(kVocabulary, LayerImpl::kSize));
    for (int i = 0; i < depth; ++i) layers->push_back(Layer());
    register_module("layers", layers);
    if (!tied)
      head = register_module("head", Linear(torch::nn::LinearOptions(LayerImpl::kSize, kVocabulary).bias(false)));
  }
  Tensor loss(std::int64_t index) {
    const Tensor ids = tokens(index, {2, 33}, kVocabulary);
    const Tensor hidden = layers->forward(table(ids.slice(1, 0, 32)));
    const Tensor logits = head ? head(hidden) : torch::nn::functional::linear(hidden, table->weight);
    return torch::nn::functional::cross_entropy(logits.flatten(0, 1), ids.slice(1, 1).flatten());
  }
  Embedding table{nullptr};
  torch::nn::Sequential layers;
  Linear head{nullptr};
};

TEST(TensorAutomatic, CutsADecoderAsMegatronDoes) {
  for (const bool tied : {false, true}) {
    Decoder decoder(tied);
    for (const int ranks : {2, 4}) {
      std::string layers;
      for (const std::string layer : {"layers.0.", "layers.1."})
        for (const char* const each : {"alpha.weight 0", "beta.weight 0", "gamma.weight 0", "delta.weight 1",
                                       "gate.weight 0", "gate.bias 0", "wide.weight 0", "wide.bias 0", "back.weight 1"})
          layers += ", " + layer + each;
      EXPECT_EQ(cuts_of(decoder, ranks), "table.weight 0" + layers + (tied ? "" : ", head.weight 0"));
    }
  }
}

// Of norms that are written by hand hidden states could be cut, and would be summed more often.
struct LlamaOfModels : torch::nn::Module {
  models::Llama llama = register_module("llama", models::Llama(models::llama_preset("micro")));
  Tensor loss(std::int64_t index) {
    const Tensor ids = tokens(index, {2, 33}, 256);
    return llama->loss(ids.slice(1, 0, 32), ids.slice(1, 1));
  }
};

TEST(TensorAutomatic, CutsALlamaAsItsNamesDo) {
  LlamaOfModels model;
  for (const int ranks : {2, 4}) EXPECT_EQ(cuts_of(model, ranks), cuts_of(model, models::llama_cuts()));
}

// Layers as GPT-2's are in Python: weights of [inputs, outputs], and one product for all of query, key and value.
struct OtherWayRoundImpl : torch::nn::Module {
  OtherWayRoundImpl(std::int64_t inputs, std::int64_t outputs)
      : weight(register_parameter("weight", torch::randn({inputs, outputs}) * .1)),
        bias(register_parameter("bias", torch::zeros({outputs}))) {}
  Tensor forward(const Tensor& x) {
    return torch::addmm(bias, x.flatten(0, 1), weight).view({x.size(0), x.size(1), -1});
  }
  Tensor weight, bias;
};
TORCH_MODULE(OtherWayRound);

struct Feed : torch::nn::Module {
  Tensor loss(std::int64_t index) { return proj(torch::gelu(fc(norm(numbers(index, {4, 16, 32}))))).square().mean(); }
  LayerNorm norm = register_module("norm", LayerNorm(LayerNormOptions({32})));
  OtherWayRound fc = register_module("fc", OtherWayRound(32, 128)),
                proj = register_module("proj", OtherWayRound(128, 32));
};

TEST(TensorAutomatic, CutsWeightsWhoseInputsComeFirst) {
  Feed feed;
  EXPECT_EQ(cuts_of(feed, 2), "fc.weight 1, fc.bias 0, proj.weight 0");
}

struct Convolutions : torch::nn::Module {
  Tensor loss(std::int64_t index) { return second(torch::relu(first(numbers(index, {2, 8, 8, 8})))).square().mean(); }
  torch::nn::Conv2d first = register_module("first", torch::nn::Conv2d(torch::nn::Conv2dOptions(8, 32, 3))),
                    second = register_module("second", torch::nn::Conv2d(torch::nn::Conv2dOptions(32, 8, 3)));
};

TEST(TensorAutomatic, CutsChannels) {
  Convolutions net;
  EXPECT_EQ(cuts_of(net, 2), "first.weight 0, first.bias 0, second.weight 1");
}

// What nothing divides, or whose operators would run whole, is left.
struct Odd : torch::nn::Module {
  Tensor loss(std::int64_t index) {
    const Tensor state = std::get<0>(lstm(numbers(index, {5, 2, 6})));
    return out(state).square().mean();
  }
  torch::nn::LSTM lstm = register_module("lstm", torch::nn::LSTM(6, 9));
  Linear out = register_module("out", Linear(9, 7));
};

TEST(TensorAutomatic, LeavesWhatIsBestWhole) {
  Odd odd;
  EXPECT_EQ(cuts_of(odd, 2), "");
  EXPECT_EQ(cuts_of(odd, 1), "");
}

// A norm over a batch, dropout, and gradients that somebody has left.
struct Stateful : torch::nn::Module {
  Tensor loss(std::int64_t index) {
    return down(torch::dropout(norm(up(numbers(index, {8, 16}))), .5, true)).square().mean();
  }
  Linear up = register_module("up", Linear(16, 32)), down = register_module("down", Linear(32, 16));
  torch::nn::BatchNorm1d norm = register_module("norm", torch::nn::BatchNorm1d(32));
};

TEST(TensorAutomatic, LeavesTheModuleAsItWas) {
  Stateful net;
  net.to(device_of_rank());
  net.up->weight.mutable_grad() = torch::ones_like(net.up->weight);
  const std::vector<Tensor> before = net.buffers(true);
  std::vector<Tensor> copies;
  for (const Tensor& buffer : before) copies.push_back(buffer.clone());
  const Tensor drawn = [] {
    torch::manual_seed(3);
    return torch::rand({2}, device_of_rank());
  }();
  torch::manual_seed(3);
  EXPECT_NE(cuts_of(net, 2), "");
  EXPECT_TRUE(at::equal(torch::rand({2}, device_of_rank()), drawn));
  for (std::size_t i = 0; i < before.size(); ++i) EXPECT_TRUE(at::equal(before[i], copies[i]));
  EXPECT_TRUE(at::equal(net.up->weight.grad(), torch::ones_like(net.up->weight)));
  EXPECT_FALSE(net.down->weight.grad().defined());
  EXPECT_THROW(static_cast<void>(tensor_automatic(net, 2, [] { throw std::runtime_error("mine"); })),
               std::runtime_error);
  EXPECT_TRUE(at::equal(net.up->weight.grad(), torch::ones_like(net.up->weight)));
  EXPECT_THROW(static_cast<void>(tensor_automatic(net, 0, [] {})), ConfigError);
  EXPECT_THROW(static_cast<void>(tensor_automatic(net, 2, nullptr)), ConfigError);
}

// As Hugging Face's Llama has it; of an embedding the words differ.
TEST(TensorPlan, IsThatOfHuggingFace) {
  const TensorRule rule = tensor_plan({{"layers.*.self_attn.q_proj", "colwise"},
                                       {"layers.*.self_attn.o_proj", "rowwise"},
                                       {"norm", "sequence_parallel"},
                                       {"embed_tokens", "rowwise"},
                                       {"lm_head", "colwise_rep"}});
  const auto of = [&](const char* name, bool embedding = false) { return rule({name, {8, 8}, embedding, false}); };
  EXPECT_EQ(of("model.layers.3.self_attn.q_proj.weight"), TensorCut::column);
  EXPECT_EQ(of("layers.3.self_attn.o_proj.weight"), TensorCut::row);
  EXPECT_EQ(of("model.layers.3.self_attn.k_proj.weight"), std::nullopt);
  EXPECT_EQ(of("model.norm.weight"), std::nullopt);
  EXPECT_EQ(of("model.embed_tokens.weight", true), TensorCut::column);
  EXPECT_EQ(of("lm_head.weight"), TensorCut::column);
  EXPECT_TRUE(says(thrown_by([] {
                     tensor_plan({{"mlp.experts", "grouped_gemm"}});
                   }),
                   {"the style 'grouped_gemm' of 'mlp.experts' is not known", "colwise"}));
}

// Layers that are numbered, of which the micro-batch saw fewer.
TEST(TensorAutomatic, TakesAlikeLayersOfADeeperModel) {
  Decoder sample, deeper(/*tied=*/false, /*depth=*/4);
  sample.to(device_of_rank());
  const TensorRule rule = tensor_automatic(sample, 2, [&] { sample.loss(0).backward(); });
  EXPECT_EQ(cuts_of(deeper, rule), cuts_of(deeper, 2));
}

}  // namespace zero::test::tensor_automatic_test
