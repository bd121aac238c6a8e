// Parts of a network that are frozen, added, used now and then, on some ranks only, or never.
#include <torch/torch.h>

#include "programs.h"

namespace zero::test::programs_adapters {

namespace F = torch::nn::functional;
using torch::nn::Conv2d;
using torch::nn::Conv2dOptions;
using torch::nn::Linear;
using torch::nn::Sequential;

constexpr std::int64_t kBatch = 4;

// Low-rank adapters (Hu et al., 2021): the base is frozen, its layers are wrapped.
struct LoraImpl : torch::nn::Module {
  LoraImpl(std::int64_t in, std::int64_t out, std::int64_t rank)
      : base(register_module("base", Linear(in, out))),
        down(register_parameter("down", at::zeros({rank, in}))),
        up(register_parameter("up", at::zeros({out, rank}))) {
    for (at::Tensor& parameter : base->parameters()) parameter.set_requires_grad(false);
  }
  at::Tensor forward(const at::Tensor& x) { return base(x) + torch::matmul(torch::matmul(x, down.t()), up.t()) * 0.5; }
  Linear base;
  at::Tensor down, up;
};
TORCH_MODULE(Lora);

struct Adapted : Program {
  explicit Adapted(Run& run) : trainer(run.trainer(*network, kAdamW)) {}
  void step(Run& run, int step) override {
    run.each(step, [&](int, std::int64_t index) {
      const at::Tensor output = network->forward(numbers(index, {kBatch, 40})).to(at::kFloat);
      trainer.backward(F::cross_entropy(output, tokens(index, {kBatch}, 6)));
    });
    trainer.step();
  }
  // Merged, as for serving: the product is added to the base, in scopes.
  void finish(Run& run) override {
    const torch::NoGradGuard no_grad;
    for (const auto& layer : network->children()) {
      auto* const lora = layer->as<Lora>();
      if (lora == nullptr) continue;
      const auto scope = gather(lora->parameters());
      lora->base->weight.add_(torch::matmul(lora->up, lora->down), 0.5);
    }
    run.record("served", network->forward(numbers(4000, {kBatch, 40})).to(at::kFloat));
  }
  Sequential network{Lora(40, 48, 4), torch::nn::ReLU(), Lora(48, 40, 4), torch::nn::Tanh(), Linear(40, 6)};
  Trainer& trainer;
};

// The head is trained first, the trunk is released after two steps.
struct Thawed : torch::nn::Module {
  Sequential trunk = register_module("trunk", Sequential(Linear(20, 48), torch::nn::ReLU(), Linear(48, 40)));
  Linear head = register_module("head", Linear(40, 5));
  at::Tensor loss(std::int64_t index) {
    const at::Tensor output = head(torch::relu(trunk->forward(numbers(index, {kBatch, 20})))).to(at::kFloat);
    return F::cross_entropy(output, tokens(index, {kBatch}, 5));
  }
};
const Course<Thawed> kThawing{.before_step = [](Thawed& network, int step) {
  for (at::Tensor& parameter : network.trunk->parameters()) parameter.requires_grad_(step >= 2);
}};

// A U-Net with two more heads: one that nothing uses, one for deep supervision in every second step.
struct UNet : torch::nn::Module {
  static Sequential stage(std::int64_t in, std::int64_t out) {
    return Sequential(Conv2d(Conv2dOptions(in, out, 3).padding(1)),
                      torch::nn::GroupNorm(torch::nn::GroupNormOptions(2, out)), torch::nn::SiLU());
  }
  std::pair<at::Tensor, at::Tensor> forward(const at::Tensor& image) {
    const at::Tensor wide = first->forward(image);
    const at::Tensor deep = second->forward(pool(wide));
    const at::Tensor bottom = third->forward(pool(deep));
    const at::Tensor risen = fourth->forward(torch::cat({up(bottom), deep}, 1));
    const auto doubled = F::InterpolateFuncOptions().scale_factor(std::vector<double>{2, 2}).mode(torch::kNearest);
    const at::Tensor whole = fifth->forward(torch::cat({F::interpolate(risen, doubled), wide}, 1));
    return {head(whole), risen};
  }
  at::Tensor loss(std::int64_t index) {
    const at::Tensor labels = tokens(index, {2, 8, 8}, 3);
    const auto [logits, deep] = forward(numbers(index, {2, 2, 8, 8}));
    const at::Tensor loss = F::cross_entropy(logits.to(at::kFloat), labels);
    if (!supervises_deep) return loss;
    const at::Tensor coarse = labels.slice(1, 0, 8, 2).slice(2, 0, 8, 2);
    return loss + 0.4 * F::cross_entropy(deep_head(deep).to(at::kFloat), coarse);
  }
  bool supervises_deep = false;
  Sequential first = register_module("first", stage(2, 6)), second = register_module("second", stage(6, 8)),
             third = register_module("third", stage(8, 12)), fourth = register_module("fourth", stage(16, 8)),
             fifth = register_module("fifth", stage(14, 6));
  torch::nn::MaxPool2d pool = register_module("pool", torch::nn::MaxPool2d(2));
  torch::nn::ConvTranspose2d up =
      register_module("up", torch::nn::ConvTranspose2d(torch::nn::ConvTranspose2dOptions(12, 8, 2).stride(2)));
  Conv2d head = register_module("head", Conv2d(Conv2dOptions(6, 3, 1)));
  Conv2d deep_head = register_module("deep_head", Conv2d(Conv2dOptions(8, 3, 1)));
  Conv2d unused_head = register_module("unused_head", Conv2d(Conv2dOptions(6, 9, 1)));
};
const Course<UNet> kSegmentation{
    .before_step = [](UNet& network, int step) { network.supervises_deep = step % 2 == 1; }};

// A mixture of experts: what a micro-batch is routed to differs, so that ranks use different units, some none at all.
struct Mixture : torch::nn::Module {
  Mixture() {
    for (int i = 0; i < 4; ++i) experts->push_back(Sequential(Linear(24, 40), torch::nn::GELU(), Linear(40, 24)));
  }
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor share = torch::softmax(router(x).to(at::kFloat), 1);
    const auto [weight, choice] = share.max(1);
    at::Tensor output = torch::zeros({x.size(0), 24}, x.options());
    for (int i = 0; i < 4; ++i) {
      const at::Tensor rows = choice.eq(i).nonzero().squeeze(1);
      if (rows.numel() == 0) continue;
      const at::Tensor result =
          experts[static_cast<std::size_t>(i)]->as<Sequential>()->forward(x.index_select(0, rows));
      output = output.index_add(0, rows, result.to(at::kFloat) * weight.index_select(0, rows).unsqueeze(1));
    }
    return output;
  }
  at::Tensor loss(std::int64_t index) {
    // One direction for all rows, so that a micro-batch goes to few experts.
    const at::Tensor x = numbers(index, {1, 24}) * 2 + 0.1 * numbers(index + 500, {kBatch, 24});
    return (forward(x) - x).square().mean();
  }
  Linear router = register_module("router", Linear(24, 4));
  torch::nn::ModuleList experts = register_module("experts", torch::nn::ModuleList());
};

// Layers left out at random (stochastic depth): another order of use in every micro-batch.
struct Shallow : torch::nn::Module {
  at::Tensor loss(std::int64_t index) {
    const at::Tensor kept = tokens(index, {4}, 2);
    at::Tensor x = numbers(index, {kBatch, 36});
    for (std::int64_t i = 0; i < 4; ++i) {
      if (i > 0 && kept[i].item<std::int64_t>() == 0) continue;
      x = x + torch::tanh(layers[static_cast<std::size_t>(i)]->as<Linear>()->forward(x)).to(at::kFloat);
    }
    return x.square().mean();
  }
  torch::nn::ModuleList layers =
      register_module("layers", torch::nn::ModuleList(Linear(36, 36), Linear(36, 36), Linear(36, 36), Linear(36, 36)));
};

std::vector<ProgramRow> rows() {
  return {{"LoraOnAFrozenBase", program<Adapted>()},
          {"ATrunkThatIsThawed", usual<Thawed>(kAdamW, kThawing)},
          {"UNetWithAnUnusedHead", usual<UNet>(Sgd{.lr = 0.05, .momentum = 0.9}, kSegmentation)},
          {"ExpertsThatSomeRanksDoNotUse", usual<Mixture>()},
          {"LayersLeftOutAtRandom", usual<Shallow>()}};
}

}  // namespace zero::test::programs_adapters
