// The modules that LibTorch has, and parameters of every kind, under every plan, in fp32 and in bf16 fed
// with fp32 input.
#include <torch/library.h>
#include <torch/torch.h>

#include "programs.h"

namespace zero::test::modules_test {

using torch::nn::Conv2d;
using torch::nn::Linear;

at::Tensor squared(const at::Tensor& x) {
  return x.to(at::kFloat).square().mean();
}

struct Convolutional : torch::nn::Module {
  explicit Convolutional(bool channels_last = false) {
    net->push_back(Conv2d(torch::nn::Conv2dOptions(3, 5, 3).padding(1)));
    net->push_back(torch::nn::BatchNorm2d(5));
    net->push_back(torch::nn::ReLU());
    net->push_back(Conv2d(torch::nn::Conv2dOptions(5, 6, 3).stride(2)));
    net->push_back(torch::nn::GroupNorm(torch::nn::GroupNormOptions(3, 6)));
    net->push_back(torch::nn::AdaptiveAvgPool2d(torch::nn::AdaptiveAvgPool2dOptions({1, 1})));
    net->push_back(torch::nn::Flatten());
    net->push_back(Linear(6, 4));
    register_module("net", net);
    if (!channels_last) return;
    for (at::Tensor& parameter : parameters())
      if (parameter.dim() == 4) parameter.set_data(parameter.contiguous(at::MemoryFormat::ChannelsLast));
  }
  at::Tensor loss(std::int64_t index) {
    return torch::nn::functional::cross_entropy(net->forward(numbers(index, {4, 3, 8, 8})), tokens(index, {4}, 4));
  }
  torch::nn::Sequential net;
};

const Course<Convolutional> kChannelsLast{.make = [] { return std::make_shared<Convolutional>(true); }};

TEST(Modules, ChannelsLastWeightsKeepTheirOrder) {
  on_ranks<Convolutional>({.plan = Plan::zero3()}, kChannelsLast, [](Convolutional& model, Engine& engine, int) {
    const at::Tensor weight = model.net[0]->as<Conv2d>()->weight;
    EXPECT_TRUE(weight.is_contiguous(at::MemoryFormat::ChannelsLast));
    EXPECT_TRUE(engine.main_parameter(weight).is_contiguous(at::MemoryFormat::ChannelsLast));
  });
}

// An operator that draws numbers, whose first tensor is undefined, as that of cuDNN's recurrent layers may be.
at::Tensor with_noise(const std::optional<at::Tensor>& scale, const at::Tensor& x) {
  EXPECT_FALSE(scale && scale->defined());
  return x + 0 * at::rand_like(x);
}

TORCH_LIBRARY(modules_test, library) {
  library.def(torch::schema("with_noise(Tensor? scale, Tensor x) -> Tensor"), {at::Tag::nondeterministic_seeded});
  library.impl("with_noise", c10::DispatchKey::CompositeImplicitAutograd, TORCH_FN(with_noise));
}

struct Noisy : torch::nn::Module {
  at::Tensor loss(std::int64_t index) {
    static const auto operation = c10::Dispatcher::singleton()
                                      .findSchemaOrThrow("modules_test::with_noise", "")
                                      .typed<at::Tensor(const std::optional<at::Tensor>&, const at::Tensor&)>();
    return squared(operation.call(at::Tensor(), linear(numbers(index, {3, 5}))));
  }
  Linear linear = register_module("linear", Linear(5, 4));
};

struct TransposedConvolutional : torch::nn::Module {
  at::Tensor loss(std::int64_t index) { return squared(norm(up(torch::relu(down(numbers(index, {4, 2, 12})))))); }
  torch::nn::Conv1d down = register_module("down", torch::nn::Conv1d(torch::nn::Conv1dOptions(2, 4, 3).groups(2)));
  torch::nn::ConvTranspose1d up =
      register_module("up", torch::nn::ConvTranspose1d(torch::nn::ConvTranspose1dOptions(4, 3, 3)));
  torch::nn::BatchNorm1d norm = register_module("norm", torch::nn::BatchNorm1d(3));
};

struct LayerNormed : torch::nn::Module {
  at::Tensor loss(std::int64_t index) { return squared(norm(layer(norm(numbers(index, {3, 6}))))); }
  torch::nn::LayerNorm norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({6})));
  Linear layer = register_module("layer", Linear(6, 6));
};

template <class Recurrent, class Options>
struct Sequence : torch::nn::Module {
  at::Tensor loss(std::int64_t index) { return squared(out(std::get<0>(recurrent(numbers(index, {3, 5, 4}))))); }
  Recurrent recurrent =
      this->register_module("recurrent", Recurrent(Options(4, 6).num_layers(2).bidirectional(true).batch_first(true)));
  Linear out = this->register_module("out", Linear(12, 2));
};

struct Cells : torch::nn::Module {
  at::Tensor loss(std::int64_t index) {
    const at::Tensor x = numbers(index, {4, 3, 5});
    auto state = std::make_tuple(at::zeros_like(x[0]), at::zeros_like(x[0]));
    at::Tensor hidden = at::zeros_like(x[0]);
    for (std::int64_t t = 0; t < 4; ++t) {
      state = lstm(x[t], state);
      hidden = gru(std::get<0>(state).to(at::kFloat), hidden.to(at::kFloat));
      state = {std::get<0>(state).to(at::kFloat), std::get<1>(state).to(at::kFloat)};
    }
    return squared(hidden);
  }
  torch::nn::LSTMCell lstm = register_module("lstm", torch::nn::LSTMCell(5, 5));
  torch::nn::GRUCell gru = register_module("gru", torch::nn::GRUCell(5, 5));
};

struct Attention : torch::nn::Module {
  at::Tensor loss(std::int64_t index) {
    const at::Tensor x = numbers(index, {5, 2, 8});
    return squared(std::get<0>(attention(x, x, x)));
  }
  torch::nn::MultiheadAttention attention = register_module("attention", torch::nn::MultiheadAttention(8, 2));
};

struct Transforming : torch::nn::Module {
  at::Tensor loss(std::int64_t index) { return squared(encoder(numbers(index, {5, 2, 8}))); }
  torch::nn::TransformerEncoder encoder = register_module(
      "encoder", torch::nn::TransformerEncoder(torch::nn::TransformerEncoderOptions(
                     torch::nn::TransformerEncoderLayerOptions(8, 2).dim_feedforward(12).dropout(0.0), 2)));
};

struct Embedded : torch::nn::Module {
  explicit Embedded(bool sparse = true)
      : table(register_module("table", torch::nn::Embedding(torch::nn::EmbeddingOptions(13, 6).sparse(sparse)))) {}
  at::Tensor loss(std::int64_t index) {
    const at::Tensor ids = tokens(index, {4, 5}, 13);
    return squared(out(table(ids).sum(1)) + bag(ids.fmod(7)));
  }
  torch::nn::Embedding table;
  torch::nn::EmbeddingBag bag = register_module("bag", torch::nn::EmbeddingBag(7, 3));
  Linear out = register_module("out", Linear(6, 3));
};

TEST(Modules, EmbeddingsWithSparseGradientsTrainAsDense) {
  Job job{.optimizer = kSgdMomentum};
  const Course<Embedded> dense{.make = [] { return std::make_shared<Embedded>(false); }};
  const Outcome expected = train_plain<Embedded>(job, dense);
  for (const Precision precision : {Precision::fp32, Precision::bf16}) {
    job.plan = job.plan.precision(precision);
    const Outcome run = train<Embedded>(job, dense);
    if (precision == Precision::fp32) {
      EXPECT_EQ(difference(expected, run, 1e-6), "");
    }
    under_every_plan(job, [&](const Job& each) { EXPECT_EQ(difference(run, train<Embedded>(each)), ""); });
  }
}

struct Bilinear : torch::nn::Module {
  at::Tensor loss(std::int64_t index) {
    const at::Tensor x = numbers(index, {3, 4});
    return squared(prelu(bilinear(x, x)));
  }
  torch::nn::Bilinear bilinear = register_module("bilinear", torch::nn::Bilinear(4, 4, 5));
  torch::nn::PReLU prelu = register_module("prelu", torch::nn::PReLU());
};

struct Lists : torch::nn::Module {
  Lists() {
    for (int i = 0; i < 3; ++i) list->append(at::zeros({5, 5}));
    table->insert("scale", at::zeros({5}));
    table->insert("shift", at::zeros({5}));
    layers->update({{"one", Linear(5, 5).ptr()}});
  }
  at::Tensor loss(std::int64_t index) {
    at::Tensor x = numbers(index, {3, 5});
    for (std::size_t i = 0; i < list->size(); ++i) x = torch::tanh(x.matmul(list[i]));
    x = layers["one"]->as<Linear>()->forward(x);
    return squared(x * table->get("scale") + table->get("shift"));
  }
  torch::nn::ParameterList list = register_module("list", torch::nn::ParameterList());
  torch::nn::ParameterDict table = register_module("table", torch::nn::ParameterDict());
  torch::nn::ModuleDict layers = register_module("layers", torch::nn::ModuleDict());
};

struct Layouts : torch::nn::Module {
  at::Tensor loss(std::int64_t index) {
    const at::Tensor x = numbers(index, {3, 4});
    return squared(x.matmul(transposed).matmul(strided) + single.sum() + x.sum() * scalar);
  }
  at::Tensor transposed = register_parameter("transposed", at::zeros({6, 4}).t());
  at::Tensor strided = register_parameter("strided", at::zeros({6, 10}).slice(1, 0, 10, 2));
  at::Tensor single = register_parameter("single", at::zeros({1}));
  at::Tensor scalar = register_parameter("scalar", at::zeros({}));
};

struct Tiny : torch::nn::Module {
  at::Tensor loss(std::int64_t index) { return (numbers(index, {4}) * weight + offset).square().mean(); }
  at::Tensor weight = register_parameter("weight", at::zeros({}));
  at::Tensor offset = register_parameter("offset", at::zeros({1}));
};

struct Empty : torch::nn::Module {
  at::Tensor loss(std::int64_t index) {
    const at::Tensor x = numbers(index, {3, 4});
    const at::Tensor none = narrow(x).sum() + (alone * 2).sum() + at::linear(x, beside).sum();
    return squared(layer(x) + extra) + none;
  }
  Linear narrow = register_module("narrow", Linear(torch::nn::LinearOptions(4, 0).bias(false)));
  Linear layer = register_module("layer", Linear(4, 2));
  at::Tensor beside = register_parameter("beside", at::zeros({0, 4}));
  at::Tensor extra = register_parameter("extra", at::zeros({2}));
  at::Tensor alone = register_parameter("alone", at::zeros({0}));
};

// Whatever else is in their unit: `narrow.weight` is alone in one.
TEST(Parameters, WithoutElementsAreStoredAsOthersAre) {
  for (const Plan& plan : all_plans()) {
    on_ranks<Empty>({.plan = plan.bf16(), .optimizer = kSgdMomentum}, {}, [](Empty& model, Engine& engine, int) {
      train_step(model, engine);
      for (const auto& item : model.named_parameters()) {
        SCOPED_TRACE(item.key());
        EXPECT_EQ(item.value().scalar_type(), at::kBFloat16);
        const at::Tensor main = engine.main_parameter(item.value());
        EXPECT_EQ(main.scalar_type(), at::kFloat);
        EXPECT_EQ(main.sizes(), item.value().sizes());
      }
      engine.backward(model.loss(1));
      EXPECT_EQ(engine.gradient(model.narrow->weight).sizes(), model.narrow->weight.sizes());
      engine.discard();
      engine.release();
      for (const at::Tensor& parameter : model.parameters()) EXPECT_EQ(parameter.scalar_type(), at::kFloat);
    });
  }
}

struct Mixed : torch::nn::Module {
  Mixed() {
    half->to(at::kBFloat16);
    wide->to(at::kDouble);
  }
  at::Tensor loss(std::int64_t index) {
    const at::Tensor x = torch::tanh(plain(numbers(index, {3, 5})));
    const at::Tensor y = torch::tanh(wide(x.to(at::kDouble))) * factor;
    return squared(half(y.to(at::kBFloat16))) + y.square().mean().to(at::kFloat);
  }
  Linear plain = register_module("plain", Linear(5, 5));
  Linear wide = register_module("wide", Linear(5, 5));
  Linear half = register_module("half", Linear(5, 5));
  at::Tensor factor = register_parameter("factor", at::zeros({5}, at::kDouble));
  at::Tensor offset = register_parameter("offset", at::zeros({5}));
};

TEST(Parameters, OfSeveralDtypes) {
  const Job job{.ranks = 3};
  for (const Precision precision : {Precision::fp32, Precision::bf16}) {
    Job each = job;
    each.plan = each.plan.precision(precision);
    const Outcome ddp = train<Mixed>(each);
    EXPECT_EQ(ddp.parameters.at("wide.weight").scalar_type(), at::kDouble);
    EXPECT_EQ(ddp.parameters.at("half.weight").scalar_type(), at::kFloat);
    EXPECT_EQ(ddp.parameters.at("half.weight as stored").scalar_type(), at::kBFloat16);
    EXPECT_LT(ddp.losses.back(), ddp.losses.front());
    under_every_plan(each, [&](const Job& other) { EXPECT_EQ(difference(ddp, train<Mixed>(other)), ""); });
  }
}

struct Doubles : torch::nn::Module {
  Doubles() { layer->to(at::kDouble); }
  at::Tensor loss(std::int64_t index) { return layer(numbers(index, {3, 5}).to(at::kDouble)).square().mean(); }
  Linear layer = register_module("layer", Linear(5, 5));
};

// Attention, and a bias before a norm, have gradients that are zero but for rounding: AdamW would blow them up.
std::vector<ProgramRow> rows() {
  return {
      {"ConvolutionsBatchNormAndGroupNorm", usual<Convolutional>(kSgdMomentum), strictly_on({2})},
      {"ChannelsLastWeights", usual<Convolutional>(kSgdMomentum, kChannelsLast), strictly_on({2})},
      {"RandomOperatorsOfUndefinedTensors", usual<Noisy>(kSgdMomentum), strictly_on({2})},
      {"TransposedAndGroupedConvolutions", usual<TransposedConvolutional>(kSgdMomentum), strictly_on({2})},
      {"LayerNormOfTheInput", usual<LayerNormed>(kSgdMomentum), strictly_on({2})},
      {"Lstm", usual<Sequence<torch::nn::LSTM, torch::nn::LSTMOptions>>(), strictly_on({2})},
      {"Gru", usual<Sequence<torch::nn::GRU, torch::nn::GRUOptions>>(), strictly_on({2})},
      {"Rnn", usual<Sequence<torch::nn::RNN, torch::nn::RNNOptions>>(), strictly_on({2})},
      {"RecurrentCells", usual<Cells>(), strictly_on({2})},
      {"MultiheadAttention", usual<Attention>(kSgdMomentum), strictly_on({2})},
      {"TransformerEncoder", usual<Transforming>(kSgdMomentum), strictly_on({2})},
      {"BilinearAndPRelu", usual<Bilinear>(kSgdMomentum), strictly_on({2})},
      {"ParameterListParameterDictAndModuleDict", usual<Lists>(kSgdMomentum), strictly_on({2})},
      {"ParametersThatAreNotContiguous", usual<Layouts>(kSgdMomentum), strictly_on({2})},
      {"ParametersFewerThanRanks", usual<Tiny>(), strictly_on({5})},
      {"ParametersWithoutElements", usual<Empty>(kSgdMomentum), strictly_on({2})},
      {"ParametersInFp64", usual<Doubles>(), {.steps = 3, .ranks = {3}, .tolerance = 1e-12}},
  };
}

}  // namespace zero::test::modules_test
