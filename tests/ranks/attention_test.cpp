// LibTorch's attention and transformers with masks, in 16 bits.
#include "harness.h"

namespace zero::test::attention_test {

namespace nn = torch::nn;

// Of 3 sequences of 5, the last of 2 positions.
at::Tensor padding() {
  at::Tensor mask = at::zeros({3, 5}, at::kBool);
  mask[1].narrow(0, 4, 1).fill_(true);
  mask[2].narrow(0, 2, 3).fill_(true);
  return mask;
}

at::Tensor causal() {
  return at::full({5, 5}, -1e4).triu(1);
}

at::Tensor batch(std::int64_t index) {
  return numbers(index, {5, 3, 8});
}

enum class Kind { self, other_keys, three_inputs, sizes_of_its_own, zeros_and_biases };

struct Attention : nn::Module {
  explicit Attention(Kind of) : kind(of) {
    nn::MultiheadAttentionOptions options(8, 2);
    if (kind == Kind::sizes_of_its_own) options.kdim(6).vdim(6);  // LibTorch takes no others
    if (kind == Kind::zeros_and_biases) options.add_bias_kv(true).add_zero_attn(true);
    attention = register_module("attention", nn::MultiheadAttention(options));
  }
  at::Tensor loss(std::int64_t index) {
    const at::Tensor x = batch(index), y = batch(index + 1000), z = batch(index + 2000);
    const at::Tensor mask = kind == Kind::self ? causal() : at::Tensor();
    const auto attend = [&](const at::Tensor& key, const at::Tensor& value) {
      const auto [seen, weights] = attention(x, key, value, padding(), true, mask);
      return seen.to(at::kFloat).square().mean() + weights.to(at::kFloat).square().mean();
    };
    switch (kind) {
      case Kind::other_keys: return attend(y, y);
      case Kind::three_inputs: return attend(y, z);
      case Kind::sizes_of_its_own: return attend(y.narrow(2, 0, 6), z.narrow(2, 0, 6));
      default: return attend(x, x);
    }
  }
  Kind kind;
  nn::MultiheadAttention attention{nullptr};
};

struct Encoder : nn::Module {
  at::Tensor loss(std::int64_t index) {
    return layers(batch(index), causal(), padding()).to(at::kFloat).square().mean();
  }
  nn::TransformerEncoder layers =
      register_module("layers", nn::TransformerEncoder(nn::TransformerEncoderOptions(
                                    nn::TransformerEncoderLayerOptions(8, 2).dim_feedforward(12).dropout(0.0), 2)));
};

struct Whole : nn::Module {
  at::Tensor loss(std::int64_t index) {
    const at::Tensor y = transformer(batch(index), batch(index + 1000), causal(), causal(), at::Tensor(), padding(),
                                     padding(), padding());
    return y.to(at::kFloat).square().mean();
  }
  nn::Transformer transformer = register_module(
      "transformer",
      nn::Transformer(
          nn::TransformerOptions(8, 2).num_encoder_layers(1).num_decoder_layers(1).dim_feedforward(12).dropout(0.0)));
};

// What plain LibTorch computes in fp32, but for rounding, and ddp's bits under every plan.
template <class Model>
void expect_trained(const Course<Model>& course, const Options& options = {}) {
  Job job{.optimizer = Sgd{.lr = 0.05}, .options = options, .steps = 2};
  const Outcome exact = train_plain<Model>(job, course);
  for (const Precision precision : {Precision::bf16, Precision::fp16}) {
    job.plan = Plan::ddp().precision(precision);
    const Outcome ddp = train<Model>(job, course);
    ASSERT_EQ(ddp.losses.size(), exact.losses.size());
    for (std::size_t i = 0; i < exact.losses.size(); ++i) EXPECT_NEAR(ddp.losses[i], exact.losses[i], 0.02);
    job.plan = Plan::zero3().precision(precision);
    EXPECT_EQ(difference(ddp, train<Model>(job, course)), "");
  }
}

TEST(PaddedAttention, IsTrainedIn16Bits) {
  for (const Kind kind :
       {Kind::self, Kind::other_keys, Kind::three_inputs, Kind::sizes_of_its_own, Kind::zeros_and_biases}) {
    SCOPED_TRACE(static_cast<int>(kind));
    expect_trained<Attention>({.make = [kind] { return std::make_shared<Attention>(kind); }});
  }
}

TEST(PaddedAttention, IsTrainedInFullPrecisionToo) {
  const Options wide{.full_precision = [](const ParameterInfo& info) { return info.name.starts_with("attention."); }};
  on_ranks<Attention>(
      {.plan = Plan::zero3().bf16(), .options = wide}, {.make = [] { return std::make_shared<Attention>(Kind::self); }},
      [](Attention& model, Engine& engine, int) { EXPECT_TRUE(std::isfinite(train_step(model, engine).loss)); });
}

TEST(PaddedAttention, OfTransformersIsTrainedIn16Bits) {
  expect_trained<Encoder>({});
  expect_trained<Whole>({});
}

TEST(PaddedAttention, IsEvaluatedIn16Bits) {
  on_ranks<Encoder>({.plan = Plan::zero3().bf16()}, {}, [](Encoder& model, Engine& engine, int) {
    const double trained = model.loss(3).item<double>();
    {
      const at::NoGradGuard no_grad;
      model.eval();
      EXPECT_NEAR(model.loss(3).item<double>(), trained, 1e-6);
      model.train();
    }
    EXPECT_TRUE(train_step(model, engine).applied);
  });
}

// A layer as one operator, of sequences of their own lengths: as Python's encoders are evaluated with such a mask.
at::Tensor of_own_lengths(nn::TransformerEncoderLayerImpl& layer) {
  const at::NoGradGuard no_grad;
  const auto& attention = layer.self_attn;
  const at::Tensor x = at::_nested_tensor_from_mask(batch(1).transpose(0, 1).contiguous(), padding().logical_not());
  const at::Tensor y = at::_transformer_encoder_layer_fwd(
      x, 8, 2, attention->in_proj_weight, attention->in_proj_bias, attention->out_proj->weight,
      attention->out_proj->bias, /*use_gelu=*/false, /*norm_first=*/false, 1e-5, layer.norm1->weight, layer.norm1->bias,
      layer.norm2->weight, layer.norm2->bias, layer.linear1->weight, layer.linear1->bias, layer.linear2->weight,
      layer.linear2->bias);
  return y.to_padded_tensor(0).to(at::kFloat);
}

struct Layer : nn::Module {
  nn::TransformerEncoderLayer layer = register_module(
      "layer", nn::TransformerEncoderLayer(nn::TransformerEncoderLayerOptions(8, 2).dim_feedforward(12)));
};

TEST(PaddedAttention, OfOneOperatorIsEvaluatedIn16Bits) {
  Layer plain;
  initialise(plain, kSeed);
  const at::Tensor expected = of_own_lengths(*plain.layer);
  for (const Precision precision : {Precision::bf16, Precision::fp16})
    on_ranks<Layer>({.plan = Plan::zero3().precision(precision)}, {}, [&](Layer& model, Engine&, int) {
      EXPECT_TRUE(at::allclose(of_own_lengths(*model.layer), expected, 0.05, 0.05));
    });
}

// Scores that no key is hidden from stay in 16 bits.
TEST(PaddedAttention, AloneHasItsScoresInFp32) {
  on_ranks<Attention>({.plan = Plan::ddp().bf16(), .ranks = 1},
                      {.make = [] { return std::make_shared<Attention>(Kind::self); }},
                      [](Attention& model, Engine&, int) {
                        const at::Tensor x = batch(1);
                        EXPECT_EQ(std::get<1>(model.attention(x, x, x)).scalar_type(), at::kBFloat16);
                        EXPECT_EQ(std::get<1>(model.attention(x, x, x, padding())).scalar_type(), at::kFloat);
                      });
}

}  // namespace zero::test::attention_test
