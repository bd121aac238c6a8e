// Modules of TorchScript, which run in its interpreter.
#include <torch/csrc/jit/api/module.h>

#include "harness.h"
#include "zero/error.h"

namespace zero::test::script_test {

using Scripted = torch::jit::Module;

// A module of a class of its own, as a script has it.
Scripted submodule(const std::string& name, at::IntArrayRef shape, std::int64_t seed, const std::string& forward) {
  Scripted module(name);
  module.register_parameter("weight", (numbers(seed, shape) * 0.3).requires_grad_(), /*is_buffer=*/false);
  module.register_parameter("bias", at::zeros({shape[0]}).requires_grad_(), /*is_buffer=*/false);
  module.define(forward);
  return module;
}

Scripted scripted() {
  const std::string linear = "def forward(self, x):\n  return torch.linear(x, self.weight, self.bias)\n";
  Scripted net("Net");
  net.register_module("first", submodule("First", {70, 6}, 1, linear));
  net.register_module("second", submodule("Second", {3, 70}, 2, linear));
  net.register_buffer("shift", at::ones({3}));
  net.define("def forward(self, x):\n  return self.second.forward(torch.relu(self.first.forward(x))) + self.shift\n");
  return net;
}

at::Tensor loss_of(Scripted& net, std::int64_t index) {
  return net.forward({numbers(index, {4, 6})}).toTensor().to(at::kFloat).square().mean();
}

std::vector<std::vector<double>> train_scripted(const Job& job) {
  std::vector<std::vector<double>> losses(static_cast<std::size_t>(job.ranks));
  run_ranks(job.ranks, [&](const World& world) {
    Scripted net = scripted();
    Engine engine(net, world, job.plan, job.optimizer);
    EXPECT_EQ(engine.layout().units().size(), 2u);
    for (int step = 0; step < 4; ++step) {
      engine.backward(loss_of(net, engine.micro_batch()));
      losses[static_cast<std::size_t>(world.rank())].push_back(engine.step().loss);
    }
    engine.release();
    EXPECT_GT(loss_of(net, 0).item<double>(), 0);
  });
  return losses;
}

TEST(TorchScript, TrainsUnderEveryPlanWithTheSameBits) {
  const auto expected = train_scripted({});
  EXPECT_LT(expected[0].back(), expected[0].front());
  under_every_plan({}, [&](const Job& each) { EXPECT_EQ(train_scripted(each), expected); });
}

TEST(TorchScript, IsRefusedIn16Bits) {
  Scripted net = scripted();
  for (const Plan& plan : {Plan::zero3().bf16(), Plan::ddp().precision(Precision::fp16)})
    EXPECT_TRUE(says(thrown_by([&] { Engine engine(net, World(), plan, AdamW{}); }), {"TorchScript", "use fp32"}));
}

TEST(TorchScript, TrainsAsWithoutTheEngine) {
  Scripted net = scripted();
  std::vector<at::Tensor> parameters;
  for (const at::Tensor& parameter : net.parameters()) parameters.push_back(parameter);
  torch::optim::SGD optimizer(parameters, 0.1);
  std::vector<double> losses;
  for (int step = 0; step < 4; ++step) {
    const at::Tensor loss = loss_of(net, step);
    losses.push_back(loss.item<double>());
    optimizer.zero_grad();
    loss.backward();
    optimizer.step();
  }
  const auto ours = train_scripted({.plan = Plan::zero3(), .ranks = 1, .optimizer = Sgd{.lr = 0.1}});
  for (std::size_t i = 0; i < losses.size(); ++i) EXPECT_NEAR(ours[0][i], losses[i], 1e-6);
}

}  // namespace zero::test::script_test
