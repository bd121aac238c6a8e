// Weights that are computed from parameters, noise on weights, gradients that are part of a loss.
#include <torch/torch.h>

#include "programs.h"

namespace zero::test::programs_weights {

namespace F = torch::nn::functional;
using torch::nn::Linear;
using torch::nn::Sequential;

constexpr std::int64_t kBatch = 5;

at::Tensor squared_error(const at::Tensor& output, std::int64_t index) {
  return (output.to(at::kFloat) - numbers(index + 400, output.sizes())).square().mean();
}

// Noise is added to the weights in the forward; the first use of a parameter is the sum, or a random operator that
// takes its shape and dtype.
struct Noisy : torch::nn::Module {
  virtual at::Tensor noisy(const at::Tensor& weight, std::int64_t index) {
    return weight + 0.05 * numbers(index, weight.sizes());
  }
  at::Tensor loss(std::int64_t index) {
    const at::Tensor hidden = torch::tanh(F::linear(numbers(index, {kBatch, 30}), noisy(in->weight, index), in->bias));
    return squared_error(F::linear(hidden, noisy(out->weight, index + 50), out->bias), index);
  }
  Linear in = register_module("in", Linear(30, 44)), out = register_module("out", Linear(44, 3));
};

struct NoisyLike : Noisy {
  at::Tensor noisy(const at::Tensor& weight, std::int64_t) override {
    return weight + 0.05 * torch::randn_like(weight);
  }
};

// A variational autoencoder: noise in the middle, of the shape of an activation.
struct Vae : torch::nn::Module {
  at::Tensor loss(std::int64_t index) {
    const at::Tensor x = numbers(index, {kBatch, 20});
    const std::vector<at::Tensor> code = encoder->forward(x).chunk(2, 1);
    const at::Tensor mean = code[0].to(at::kFloat), log_variance = code[1].to(at::kFloat);
    const at::Tensor z = mean + torch::randn_like(mean) * torch::exp(0.5 * log_variance);
    const at::Tensor divergence = -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).mean();
    return (decoder->forward(z).to(at::kFloat) - x).square().mean() + divergence;
  }
  Sequential encoder = register_module(
                 "encoder", Sequential(Linear(20, 44), torch::nn::ReLU(), torch::nn::Dropout(0.2), Linear(44, 16))),
             decoder = register_module("decoder", Sequential(Linear(8, 44), torch::nn::ReLU(), Linear(44, 20)));
};

// Weight normalisation (Salimans and Kingma, 2016) in one layer, spectral normalisation in the other, whose vector is a
// buffer.
struct Normalised : torch::nn::Module {
  at::Tensor loss(std::int64_t index) {
    const at::Tensor weight = torch::_weight_norm(direction, length, 0);
    const at::Tensor hidden = torch::tanh(F::linear(numbers(index, {kBatch, 30}), weight));
    const at::Tensor right = F::normalize(torch::mv(out->weight.t(), left).detach(), F::NormalizeFuncOptions().dim(0));
    const at::Tensor sigma = torch::dot(left.to(right.scalar_type()), torch::mv(out->weight, right));
    return squared_error(F::linear(hidden, out->weight / sigma, out->bias), index);
  }
  at::Tensor direction = register_parameter("direction", at::zeros({40, 30}));
  at::Tensor length = register_parameter("length_norm", at::ones({40, 1}));
  at::Tensor left = register_buffer("left", at::full({12}, 0.5));
  Linear out = register_module("out", Linear(40, 12));
};

// Weights of one layer are made by another network.
struct Hyper : torch::nn::Module {
  at::Tensor loss(std::int64_t index) {
    const at::Tensor weight = maker->forward(code).view({6, 20});
    return squared_error(F::linear(torch::relu(in(numbers(index, {kBatch, 9}))), weight), index);
  }
  at::Tensor code = register_parameter("code", at::zeros({1, 5}));
  Sequential maker = register_module("maker", Sequential(Linear(5, 30), torch::nn::Tanh(), Linear(30, 120)));
  Linear in = register_module("in", Linear(9, 20));
};

// The norm of the parameters' gradient is part of the loss.
struct FlatMinimum : torch::nn::Module {
  at::Tensor loss(std::int64_t index) {
    const at::Tensor error = squared_error(net->forward(numbers(index, {kBatch, 12})), index);
    at::Tensor penalty = at::zeros({}, error.options());
    for (const at::Tensor& gradient : torch::autograd::grad({error}, net->parameters(), {}, /*retain_graph=*/true,
                                                            /*create_graph=*/true))
      penalty = penalty + gradient.to(at::kFloat).square().sum();
    return error + 0.1 * penalty;
  }
  Sequential net = register_module("net", Sequential(Linear(12, 40), torch::nn::Tanh(), Linear(40, 4)));
};

// Learning to learn (Finn et al., 2017): a step inside the forward, through which backward goes.
struct Maml : torch::nn::Module {
  static at::Tensor forward(const std::vector<at::Tensor>& w, const at::Tensor& x) {
    return F::linear(torch::tanh(F::linear(x, w[0], w[1])), w[2], w[3]);
  }
  at::Tensor loss(std::int64_t index) {
    std::vector<at::Tensor> fast = net->parameters();
    for (int step = 0; step < 2; ++step) {
      const at::Tensor error = squared_error(forward(fast, numbers(index, {kBatch, 12})), index);
      const auto gradients = torch::autograd::grad({error}, fast, {}, /*retain_graph=*/true, /*create_graph=*/true);
      for (std::size_t i = 0; i < fast.size(); ++i) fast[i] = fast[i] - 0.1 * gradients[i];
    }
    return squared_error(forward(fast, numbers(index + 200, {kBatch, 12})), index);
  }
  Sequential net = register_module("net", Sequential(Linear(12, 40), torch::nn::Tanh(), Linear(40, 4)));
};

// An energy and its forces, which are the energy's gradient by the positions, both learned.
struct Energy : torch::nn::Module {
  at::Tensor loss(std::int64_t index) {
    const at::Tensor positions = numbers(index, {kBatch, 12}).requires_grad_(true);
    const at::Tensor energy = net->forward(positions).to(at::kFloat).sum();
    const at::Tensor forces = -torch::autograd::grad({energy}, {positions}, {}, {}, /*create_graph=*/true)[0];
    return squared_error(forces, index) + 0.1 * energy.square() / kBatch;
  }
  Sequential net = register_module(
      "net", Sequential(Linear(12, 40), torch::nn::Softplus(), Linear(40, 36), torch::nn::Tanh(), Linear(36, 1)));
};

// Weights are disturbed before the forward and put back after the backward, the step being from where they were.
struct Disturbed : Program {
  explicit Disturbed(Run& run) : trainer(run.trainer(*network, kSgdMomentum)) {}
  void step(Run& run, int step) override {
    const torch::AutoGradMode no_grad(false);
    std::vector<at::Tensor> before;
    {
      const auto scope = gather(network->parameters());
      for (std::size_t i = 0; i < network->parameters().size(); ++i) {
        at::Tensor weight = network->parameters()[i];
        before.push_back(weight.detach().clone());
        weight.add_(numbers(step * 100 + static_cast<std::int64_t>(i), weight.sizes()), 0.02);
      }
    }
    {
      const torch::AutoGradMode grad(true);
      run.each(step, [&](int, std::int64_t index) {
        trainer.backward(squared_error(network->forward(numbers(index, {kBatch, 30})), index));
      });
    }
    {
      const auto scope = gather(network->parameters());
      for (std::size_t i = 0; i < before.size(); ++i) network->parameters()[i].copy_(before[i]);
    }
    trainer.step();
  }
  Sequential network{Linear(30, 44), torch::nn::Tanh(), Linear(44, 3)};
  Trainer& trainer;
};

// Noise and clamping after the step, which stay; rank 0's noise is everybody's.
struct NoiseAfterSteps : Program {
  explicit NoiseAfterSteps(Run& run) : trainer(run.trainer(*network, kAdamW)) {}
  void step(Run& run, int step) override {
    run.each(step, [&](int, std::int64_t index) {
      trainer.backward(squared_error(network->forward(numbers(index, {kBatch, 30})), index));
    });
    trainer.step();
    const torch::NoGradGuard no_grad;
    for (const auto& item : network->named_parameters()) {
      const auto scope = gather({item.value()}, 0);
      at::Tensor weight = item.value();
      weight.add_(numbers(step, weight.sizes()), 0.01).clamp_(-0.5, 0.5);
    }
  }
  Sequential network{Linear(30, 44), torch::nn::Tanh(), Linear(44, 3)};
  Trainer& trainer;
};

std::vector<ProgramRow> rows() {
  return {{"NoiseInTheForward", usual<Noisy>()},
          {"NoiseOfTheEnginesGenerator", usual<NoisyLike>(), {.plain = false}},
          {"AVariationalAutoencoder", usual<Vae>(), {.plain = false}},
          {"WeightAndSpectralNormalisation", usual<Normalised>()},
          {"WeightsMadeByANetwork", usual<Hyper>()},
          {"TheGradientsNormInTheLoss", usual<FlatMinimum>()},
          {"LearningToLearn", usual<Maml>()},
          {"ForcesFromAnEnergy", usual<Energy>()},
          {"DisturbedAndPutBack", program<Disturbed>()},
          {"NoiseAfterSteps", program<NoiseAfterSteps>()}};
}

}  // namespace zero::test::programs_weights
