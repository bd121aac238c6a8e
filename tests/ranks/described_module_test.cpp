// Modules that are described, and backwards that are told of: what another language's programs are trained by.
#include <torch/torch.h>

#include "harness.h"
#include "zero/backward.h"
#include "zero/described_module.h"
#include "zero/error.h"

namespace zero::test::described_module_test {

using torch::nn::Embedding;
using torch::nn::EmbeddingOptions;
using torch::nn::Linear;

struct Net : torch::nn::Module {
  at::Tensor loss(std::int64_t index) {
    at::Tensor x = table(tokens(index, {4, 5}, 11));
    for (const auto& layer : *layers) x = torch::tanh(layer->as<Linear>()->forward(x));
    return (x * gain).square().mean();
  }
  Embedding table = register_module("table", Embedding(EmbeddingOptions(11, 8).max_norm(0.5)));
  torch::nn::ModuleList layers = register_module("layers", torch::nn::ModuleList(Linear(8, 8), Linear(8, 8)));
  at::Tensor gain = register_parameter("gain", at::ones({8}));
};

std::shared_ptr<DescribedModule> described(const torch::nn::Module& module, ModuleTraits traits) {
  auto result = std::make_shared<DescribedModule>(std::move(traits));
  for (const auto& each : module.named_parameters(/*recurse=*/false))
    result->register_parameter(each.key(), each.value(), each.value().requires_grad());
  return result;
}

std::shared_ptr<DescribedModule> described(const Net& net) {
  auto result = described(net, {.type = "NetImpl"});
  result->register_module("table", described(*net.table, {.type = "Rows", .embedding = true, .max_norm = 0.5}));
  auto layers = result->register_module("layers", described(*net.layers, {.type = "RmsNormStack", .container = true}));
  for (const auto& layer : net.layers->named_children())
    layers->register_module(layer.key(), described(*layer.value(), {.type = "Linear"}));
  return result;
}

TEST(DescribedModules, TrainAsTheModulesThatTheyDescribe) {
  std::vector<Outcome> runs(2);
  for (const bool told : {false, true})
    run_ranks(2, [&](const World& world) {
      Net net;
      initialise(net, kSeed);
      Engine engine = told ? Engine(*described(net), world, Plan::zero3(), AdamW{.lr = 1e-2})
                           : Engine(net, world, Plan::zero3(), AdamW{.lr = 1e-2});
      EXPECT_EQ(engine.layout().units().size(), 4U);  // two layers, the table, and what is left
      for (int step = 0; step < 3; ++step) {
        engine.backward(net.loss(engine.micro_batch()));
        const StepReport report = engine.step();
        if (world.rank() == 0) runs[told ? 1 : 0].record(report);
      }
    });
  EXPECT_EQ(difference(runs[0], runs[1]), "");
}

TEST(DescribedModules, AreWhatTheirTraitsSay) {
  Net net;
  std::vector<std::string> units, norms, tables;
  Options options;
  options.units = [&](const ModuleInfo& module) {
    units.push_back(std::string(module.type) + (module.container ? " holds" : "") +
                    (module.in_container ? " held" : ""));
    return module.in_container;
  };
  options.full_precision = [&](const ParameterInfo& parameter) {
    if (parameter.norm) norms.push_back(parameter.name);
    if (parameter.embedding) tables.push_back(parameter.name);
    return false;
  };
  auto tree = described(net);
  tree->named_children()["layers"]->register_parameter("scale", at::ones({1}));
  const Engine engine(*tree, World(), Plan::ddp(), Sgd{}, options);
  EXPECT_EQ(units, (std::vector<std::string>{"NetImpl", "Rows", "RmsNormStack holds", "Linear held", "Linear held"}));
  EXPECT_EQ(norms, std::vector<std::string>{"layers.scale"});
  EXPECT_EQ(tables, std::vector<std::string>{"table.weight"});
}

// Of one step: gradients of two losses.
std::vector<at::Tensor> gradients_by(const std::function<void(Engine&, const at::Tensor&, const at::Tensor&)>& backward,
                                     double* loss) {
  Net net;
  initialise(net, kSeed);
  Engine engine(net, World(), Plan::zero3(), Sgd{});
  backward(engine, net.loss(0), net.loss(1));
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& parameter : net.parameters()) gradients.push_back(engine.gradient(parameter));
  *loss = engine.step().loss;
  return gradients;
}

TEST(AroundBackward, SeveralLossesAreOneMicroBatch) {
  double loss = 0, expected = 0;
  const auto ours = gradients_by(
      [](Engine&, const at::Tensor& a, const at::Tensor& b) {
        const std::vector<at::Tensor> gradients{at::Tensor(), at::full({}, 2.0)};
        around_backward({a, b}, gradients, [&] { torch::autograd::backward({a, b}, gradients); });
      },
      &loss);
  const auto theirs =
      gradients_by([](Engine&, const at::Tensor& a, const at::Tensor& b) { (a + 2 * b).backward(); }, &expected);
  EXPECT_NEAR(loss, expected, 1e-6);
  for (std::size_t i = 0; i < ours.size(); ++i) EXPECT_TRUE(at::allclose(ours[i], theirs[i], 1e-5, 1e-7));
}

TEST(AroundBackward, LossesOfDifferentScalesAreRefused) {
  Net net;
  Options options;
  options.loss_scale = LossScale::fixed(8);
  Engine engine(net, World(), Plan::zero3(), Sgd{}, options);
  const at::Tensor a = engine.scale(net.loss(0)), b = net.loss(1);
  EXPECT_TRUE(says(thrown_by([&] {
                     around_backward({a, b}, {}, [&] { torch::autograd::backward({a, b}); });
                   }),
                   {"different loss scales", "8", "1"}));
  engine.discard();
  const at::Tensor c = engine.scale(net.loss(0)), d = engine.scale(net.loss(1));
  around_backward({c, d}, {}, [&] { torch::autograd::backward({c, d}); });
  EXPECT_TRUE(engine.step().applied);
}

TEST(AroundBackward, WithoutALossIsRefusedWhereAnEngineIsReached) {
  Net net;
  Engine engine(net, World(), Plan::zero3(), Sgd{});
  const at::Tensor loss = net.loss(0);
  EXPECT_TRUE(says(thrown_by([&] { around_backward({at::Tensor()}, {}, [&] { torch::autograd::backward({loss}); }); }),
                   {"no loss to report"}));
  around_backward({at::Tensor()}, {}, [] {});
  net.loss(0).backward();
  EXPECT_TRUE(engine.step().applied);
}

TEST(AroundBackward, WithoutAnEngineOnlyCalls) {
  int calls = 0;
  around_backward({at::Tensor()}, {}, [&] { ++calls; });
  EXPECT_EQ(calls, 1);
}

}  // namespace zero::test::described_module_test
