// Networks trained against each other, each by an engine of its own: backward of one goes through the others.
#include <torch/torch.h>

#include "programs.h"

namespace zero::test::programs_adversarial {

namespace F = torch::nn::functional;
using torch::nn::Linear;
using torch::nn::Sequential;

constexpr std::int64_t kBatch = 6, kNoise = 8, kData = 12;

at::Tensor noise(std::int64_t index) {
  return numbers(2 * index, {kBatch, kNoise});
}
at::Tensor real(std::int64_t index) {
  return numbers(2 * index + 1, {kBatch, kData}) * 0.5 + 1;
}

struct GeneratorImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& z) { return net->forward(z); }
  Sequential net = register_module(
      "net", Sequential(Linear(kNoise, 40), torch::nn::LeakyReLU(torch::nn::LeakyReLUOptions().negative_slope(0.2)),
                        Linear(40, 40), torch::nn::LayerNorm(torch::nn::LayerNormOptions({40})), torch::nn::Tanh(),
                        Linear(40, kData)));
};
TORCH_MODULE(Generator);

struct DiscriminatorImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) {
    return out(torch::nn::functional::softplus(hidden(torch::tanh(in(x))))).squeeze(1);
  }
  Linear in = register_module("in", Linear(kData, 40)), hidden = register_module("hidden", Linear(40, 40)),
         out = register_module("out", Linear(40, 1));
};
TORCH_MODULE(Discriminator);

// Logits against one label for all, in fp32.
at::Tensor judged(const at::Tensor& logits, double label) {
  return F::binary_cross_entropy_with_logits(logits.to(at::kFloat),
                                             at::full({logits.size(0)}, label, device_of_rank()));
}

// The order of DCGAN's example: the fake images that the discriminator learned from serve the generator too, whose
// forward so lies before the discriminator's backwards and step.
struct Dcgan : Program {
  explicit Dcgan(Run& run)
      : of_generator(run.trainer(*generator, kAdamW)), of_discriminator(run.trainer(*discriminator, kAdamW)) {}
  void step(Run& run, int step) override {
    std::map<int, at::Tensor> fakes;
    run.each(step, [&](int lane, std::int64_t index) {
      of_discriminator.backward(judged(discriminator->forward(real(index)), 0.9));
      const at::Tensor fake = generator->forward(noise(index));
      of_discriminator.backward(judged(discriminator->forward(fake.detach()), 0));
      fakes[lane] = fake;
    });
    of_discriminator.step();
    run.each(step, [&](int lane, std::int64_t) {
      of_generator.backward(judged(discriminator->forward(fakes.at(lane)), 0.9));
    });
    of_generator.step();
  }
  Generator generator;
  Discriminator discriminator;
  Trainer &of_generator, &of_discriminator;
};

// One backward of the sum, the generator first, and no second use of its images.
struct Gan : Program {
  explicit Gan(Run& run)
      : of_generator(run.trainer(*generator, kAdamW)), of_discriminator(run.trainer(*discriminator, kAdamW)) {}
  void step(Run& run, int step) override {
    run.each(step, [&](int, std::int64_t index) {
      of_generator.backward(judged(discriminator->forward(generator->forward(noise(index))), 1));
    });
    of_generator.step();
    run.each(step, [&](int, std::int64_t index) {
      const at::Tensor fake = generator->forward(noise(index)).detach();
      of_discriminator.backward(judged(discriminator->forward(real(index)), 1) +
                                judged(discriminator->forward(fake), 0));
    });
    of_discriminator.step();
  }
  Generator generator;
  Discriminator discriminator;
  Trainer &of_generator, &of_discriminator;
};

// WGAN-GP: a gradient of the critic is part of its loss, several steps of the critic for one of the generator, whose
// backward goes through a critic that was frozen for it.
struct Wgan : Program {
  explicit Wgan(Run& run) : of_generator(run.trainer(*generator, kAdamW)), of_critic(run.trainer(*critic, kAdamW)) {}
  at::Tensor penalty(const at::Tensor& true_data, const at::Tensor& fake, std::int64_t index) {
    const at::Tensor share = numbers(index + 9000, {kBatch, 1}).sigmoid();
    const at::Tensor mixed = (share * true_data + (1 - share) * fake).detach().requires_grad_(true);
    const at::Tensor score = critic->forward(mixed);
    const at::Tensor gradient =
        torch::autograd::grad({score}, {mixed}, {torch::ones_like(score)}, /*retain_graph=*/true,
                              /*create_graph=*/true)[0];
    return (gradient.norm(2, 1) - 1).square().mean();
  }
  void step(Run& run, int step) override {
    for (int round = 0; round < 2; ++round) {
      run.each(2 * step + round, [&](int, std::int64_t index) {
        const at::Tensor fake = generator->forward(noise(index)).detach();
        const at::Tensor distance = critic->forward(fake).mean() - critic->forward(real(index)).mean();
        of_critic.backward(distance + 10 * penalty(real(index), fake, index));
      });
      of_critic.step();
    }
    for (at::Tensor& parameter : critic->parameters()) parameter.set_requires_grad(false);
    run.each(step, [&](int, std::int64_t index) {
      of_generator.backward(-critic->forward(generator->forward(noise(index))).mean());
    });
    for (at::Tensor& parameter : critic->parameters()) parameter.set_requires_grad(true);
    of_generator.step();
  }
  Generator generator;
  Discriminator critic;
  Trainer &of_generator, &of_critic;
};

// Soft actor-critic's shape: an actor learns through two critics; targets are copies that follow them slowly.
struct TwinCritics : Program {
  explicit TwinCritics(Run& run)
      : of_actor(run.trainer(*actor, kAdamW)),
        of_first(run.trainer(*first, kAdamW)),
        of_second(run.trainer(*second, kAdamW)),
        target(std::dynamic_pointer_cast<torch::nn::SequentialImpl>(first->clone())) {
    target->to(at::kFloat);
  }
  static Sequential critic() { return Sequential(Linear(kNoise + 3, 40), torch::nn::ReLU(), Linear(40, 1)); }

  void step(Run& run, int step) override {
    run.each(step, [&](int, std::int64_t index) {
      const at::Tensor state = noise(index);
      const at::Tensor taken = torch::cat({state, numbers(index + 5000, {kBatch, 3})}, 1);
      at::Tensor goal;
      {
        const torch::NoGradGuard no_grad;
        const at::Tensor next = noise(index + 7000);
        goal = target->forward(torch::cat({next, torch::tanh(actor->forward(next)).to(at::kFloat)}, 1));
        goal = goal.to(at::kFloat) * 0.9 + 1;
      }
      of_first.backward(F::mse_loss(first->forward(taken).to(at::kFloat), goal));
      of_second.backward(F::mse_loss(second->forward(taken).to(at::kFloat), goal));
    });
    of_first.step();
    of_second.step();
    run.each(step, [&](int, std::int64_t index) {
      const at::Tensor state = noise(index);
      const at::Tensor chosen = torch::cat({state, torch::tanh(actor->forward(state)).to(at::kFloat)}, 1);
      of_actor.backward(-torch::minimum(first->forward(chosen), second->forward(chosen)).mean());
    });
    of_actor.step();
    const torch::NoGradGuard no_grad;
    const auto scope = gather(first->parameters());
    for (std::size_t i = 0; i < target->parameters().size(); ++i)
      target->parameters()[i].lerp_(first->parameters()[i], 0.25);
  }
  void finish(Run& run) override {
    for (const auto& item : target->named_parameters()) run.record("target " + item.key(), item.value());
  }

  Sequential actor{Linear(kNoise, 40), torch::nn::ReLU(), Linear(40, 3)};
  Sequential first = critic(), second = critic();
  Trainer &of_actor, &of_first, &of_second;
  std::shared_ptr<torch::nn::SequentialImpl> target;
};

std::vector<ProgramRow> rows() {
  return {{"DcganInTheOrderOfItsExample", program<Dcgan>(), {.reproducible = false}},
          {"GanWithOneBackwardForEach", program<Gan>()},
          {"WassersteinGanWithGradientPenalty", program<Wgan>()},
          {"AnActorThroughTwoCritics", program<TwinCritics>()}};
}

}  // namespace zero::test::programs_adversarial
