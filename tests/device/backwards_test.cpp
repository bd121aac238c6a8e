// Backwards that reach the parameters of another engine: on a device they run on a thread of LibTorch's.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "device/engines.h"
#include "zero/error.h"

namespace zero::test::backwards_test {

struct Net : torch::nn::Module {
  Net(int in, int out) : layer(register_module("layer", torch::nn::Linear(in, out))) {}
  at::Tensor forward(const at::Tensor& x) { return torch::tanh(layer(x)); }
  torch::nn::Linear layer;
};

class BackwardsOnADevice : public ModelsOnDevices {
 protected:
  // A generator's loss goes through a critic. The critic's weights after each step, and the generator's.
  static std::vector<at::Tensor> train_pair(c10::Device where, const Plan& plan, OutsideGradients outside) {
    const auto generator = std::make_shared<Net>(4, 3), critic = std::make_shared<Net>(3, 1);
    for (const auto& net : {generator, critic}) {
      initialise(*net, 7);
      net->to(where);
    }
    const Options options{.outside = outside};
    Engine for_generator(*generator, World(), plan, Sgd{.lr = 0.1}, options);
    Engine for_critic(*critic, World(), plan, Sgd{.lr = 0.1}, options);
    std::vector<at::Tensor> weights;
    for (std::int64_t step = 0; step < 3; ++step) {
      const at::Tensor z = numbers(step, {5, 4}).to(where);
      for_generator.backward(critic->forward(generator->forward(z)).square().mean());
      EXPECT_TRUE(for_generator.step().applied);
      if (outside == OutsideGradients::drop)
        for_critic.backward(critic->forward(numbers(step, {5, 3}).to(where)).mean());
      EXPECT_TRUE(for_critic.step().applied);
      for (const auto& net : {generator, critic}) {
        const Gather scope(net->parameters());
        weights.push_back(net->layer->weight.detach().cpu().clone());
      }
    }
    return weights;
  }
};

TEST_F(BackwardsOnADevice, ReachTheParametersOfAnotherEngine) {
  for (const OutsideGradients outside : {OutsideGradients::drop, OutsideGradients::add}) {
    const std::vector<at::Tensor> expected = train_pair(at::kCPU, Plan::ddp(), outside);
    EXPECT_FALSE(at::equal(expected[1], expected[3])) << "the critic learns";
    std::vector<at::Tensor> first;
    for (const Plan& plan : all_plans()) {
      const std::vector<at::Tensor> run = train_pair(accelerator::device(0), plan, outside);
      if (first.empty()) first = run;
      for (std::size_t i = 0; i < run.size(); ++i) {
        EXPECT_TRUE(at::allclose(run[i], expected[i], 1e-5, 1e-6)) << plan.label();
        EXPECT_TRUE(at::equal(run[i], first[i])) << plan.label();
      }
    }
  }
}

TEST_F(BackwardsOnADevice, OutsideOfAnyEngineStillSaySo) {
  const auto net = std::make_shared<Net>(4, 3);
  net->to(accelerator::device(0));
  const Engine engine(*net, World(), Plan::zero3(), Sgd{});
  const at::Tensor loss = net->forward(numbers(0, {5, 4}).to(accelerator::device(0))).mean();
  EXPECT_THROW(torch::autograd::backward({loss}), StateError);
}

// loss.backward(): its gradients come on a thread of LibTorch's, too.
TEST_F(BackwardsOnADevice, OfTheProgramAreTheEngines) {
  const auto train = [](const Plan& plan, const auto& backward) {
    const auto net = std::make_shared<Net>(4, 3);
    initialise(*net, 7);
    net->to(accelerator::device(0));
    Engine engine(*net, World(), plan, Sgd{.lr = 0.1});
    for (std::int64_t step = 0; step < 3; ++step) {
      backward(engine, net->forward(numbers(step, {5, 4}).to(accelerator::device(0))).square().mean());
      EXPECT_TRUE(net->layer->weight.grad().defined());
      EXPECT_TRUE(engine.step().applied);
    }
    return engine.main_parameter(net->layer->weight).cpu();
  };
  for (const Plan& plan : all_plans()) {
    const at::Tensor expected = train(plan, [](Engine& engine, const at::Tensor& loss) { engine.backward(loss); });
    EXPECT_TRUE(at::equal(expected, train(plan, [](Engine&, const at::Tensor& loss) { loss.backward(); })));
  }
}

}  // namespace zero::test::backwards_test
