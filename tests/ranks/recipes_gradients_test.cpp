// Recipes of docs/recipes.md for losses and gradients. unit/documented_code_test holds the document against this file.
#include <cmath>

#include "familiar_programs.h"

namespace zero::test::recipes_gradients_test {

// Several losses, a backward for each: the graph of one is gone before the next is made.
void train_in_turn(Regressor& net, const Batches& data, const zero::World& world, const zero::Plan& plan) {
  zero::Engine engine(*net, world, plan, zero::AdamW{.lr = 1e-2, .eps = 1e-4});
  for (const auto& [x, y] : data) {
    engine.backward(torch::mse_loss(net->forward(x), y));
    engine.backward(0.1 * torch::l1_loss(net->forward(-x), y));
    engine.step();
  }
  engine.release();
}

void train_in_turn(Regressor& net, const Batches& data) {
  torch::optim::AdamW optimizer(net->parameters(), torch::optim::AdamWOptions(1e-2).eps(1e-4));
  for (const auto& [x, y] : data) {
    optimizer.zero_grad();
    (torch::mse_loss(net->forward(x), y) + 0.1 * torch::l1_loss(net->forward(-x), y)).backward();
    optimizer.step();
  }
}

TEST(GradientRecipes, SeveralLosses) {
  expect_loop_as_plain([](auto&&... of) { train_in_turn(of...); });
}

// Clipping to a norm of one part of the network alone.
double norm_of(const zero::Engine& engine, const std::vector<torch::Tensor>& part) {
  double squares = 0;
  for (const torch::Tensor& weight : part) squares += engine.gradient(weight).square().sum().item<double>();
  return std::sqrt(squares);
}

void clip_part(const zero::Engine& engine, const std::string& name, const torch::nn::Module& part, double most) {
  const double factor = std::min(1.0, most / norm_of(engine, part.parameters()));
  engine.for_each_gradient_slice([&](const zero::GradientSlice& slice) {
    if (slice.parameter.starts_with(name)) slice.sum.mul_(factor);
  });
}

TEST(GradientRecipes, ClippingOfAGroup) {
  const OnARank program = [](const World& world, const Plan& plan, int data_of) {
    auto net = begun<Regressor>();
    zero::Engine engine(*net, world, plan, zero::Sgd{.lr = 0.1});
    for (const auto& [x, y] : batches(data_of, 6, 3)) {
      engine.backward(torch::mse_loss(net->forward(x), y));
      const double other = norm_of(engine, net->head->parameters());
      EXPECT_GT(norm_of(engine, net->body->parameters()), 0.01);
      clip_part(engine, "body.", *net->body, 0.01);
      EXPECT_NEAR(norm_of(engine, net->body->parameters()), 0.01, 1e-6);
      EXPECT_EQ(norm_of(engine, net->head->parameters()), other);
      engine.step();
    }
    engine.release();
    return left_by({{"", net.get()}});
  };
  expect_same_bits(program);
}

// Noise on gradients. An element's noise is the same whoever updates it: it is drawn for the whole parameter.
void add_noise(const zero::Engine& engine, const torch::nn::Module& net, double deviation) {
  const auto parameters = net.named_parameters();
  const auto step = static_cast<std::uint64_t>(engine.steps());
  engine.for_each_gradient_slice([&](const zero::GradientSlice& slice) {
    const std::uint64_t seed = std::hash<std::string>{}(slice.parameter) + step;
    const auto noise =
        torch::randn({parameters[slice.parameter].numel()}, torch::make_generator<at::CPUGeneratorImpl>(seed));
    slice.sum.add_(noise.slice(0, slice.begin, slice.begin + slice.sum.numel()), deviation / slice.scale);
  });
}

TEST(GradientRecipes, NoiseOnGradients) {
  const OnARank program = [](const World& world, const Plan& plan, int data_of) {
    auto net = begun<Regressor>();
    zero::Engine engine(*net, world, plan, zero::Sgd{.lr = 0.1});
    for (const auto& [x, y] : batches(data_of, 6, 3)) {
      engine.backward(torch::mse_loss(net->forward(x), y));
      const torch::Tensor before = engine.gradient(net->norm->weight);
      add_noise(engine, *net, 0.5);
      const double deviation = (engine.gradient(net->norm->weight) - before).std().item<double>();
      EXPECT_NEAR(deviation, 0.5, 0.25);
      engine.step();
    }
    engine.release();
    return left_by({{"", net.get()}});
  };
  expect_same_bits(program);
}

// Sharpness-aware minimization (Foret et al., 2021).
void sam_step(zero::Engine& engine, Regressor& net, const Batch& batch, double radius) {
  const std::vector<torch::Tensor> weights = net->parameters();
  std::vector<torch::Tensor> uphill, before;
  engine.backward(torch::mse_loss(net->forward(batch.first), batch.second));
  for (const torch::Tensor& weight : weights) uphill.push_back(engine.gradient(weight));
  const double factor = radius / norm_of(engine, weights);
  engine.discard();
  {
    const torch::NoGradGuard no_grad;
    const auto whole = zero::gather(weights);
    for (const torch::Tensor& weight : weights) before.push_back(weight.clone());
    for (std::size_t i = 0; i < weights.size(); ++i) weights[i].add_(uphill[i], factor);
  }
  engine.backward(torch::mse_loss(net->forward(batch.first), batch.second));
  {
    const torch::NoGradGuard no_grad;
    const auto whole = zero::gather(weights);
    for (std::size_t i = 0; i < weights.size(); ++i) weights[i].copy_(before[i]);
  }
  engine.step();
}

void sharpness_aware(Regressor& net, const Batches& data, const zero::World& world, const zero::Plan& plan) {
  zero::Engine engine(*net, world, plan, zero::Sgd{.lr = 0.02, .momentum = 0.9});
  for (const Batch& batch : data) sam_step(engine, net, batch, 0.05);
  engine.release();
}

void sharpness_aware(Regressor& net, const Batches& data) {
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.02).momentum(0.9));
  const std::vector<torch::Tensor> weights = net->parameters();
  for (const auto& [x, y] : data) {
    optimizer.zero_grad();
    torch::mse_loss(net->forward(x), y).backward();
    const double norm = torch::nn::utils::clip_grad_norm_(weights, 1e9);
    std::vector<torch::Tensor> before;
    {
      const torch::NoGradGuard no_grad;
      for (const torch::Tensor& weight : weights) {
        before.push_back(weight.clone());
        weight.add_(weight.grad(), 0.05 / norm);
      }
    }
    optimizer.zero_grad();
    torch::mse_loss(net->forward(x), y).backward();
    const torch::NoGradGuard no_grad;
    for (std::size_t i = 0; i < weights.size(); ++i) weights[i].copy_(before[i]);
    optimizer.step();
  }
}

TEST(GradientRecipes, SharpnessAwareMinimization) {
  expect_loop_as_plain([](auto&&... of) { sharpness_aware(of...); });
}

}  // namespace zero::test::recipes_gradients_test
