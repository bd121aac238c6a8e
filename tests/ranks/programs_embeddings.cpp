// Tables of which a micro-batch uses some rows: sparse gradients, bags, rows whose norm is bounded.
#include <torch/torch.h>

#include "programs.h"

namespace zero::test::programs_embeddings {

namespace F = torch::nn::functional;
using torch::nn::Embedding;
using torch::nn::EmbeddingOptions;
using torch::nn::Linear;

constexpr std::int64_t kRows = 90, kWidth = 14, kBatch = 6;
const Sgd kPlainSgd{.lr = 0.3};  // torch::optim's others refuse sparse gradients

// Skip-gram with negative samples: two tables with sparse gradients and nothing else.
struct SkipGram : torch::nn::Module {
  at::Tensor loss(std::int64_t index) {
    const at::Tensor words = in(tokens(3 * index, {kBatch}, kRows)).unsqueeze(2);
    const at::Tensor near = out(tokens(3 * index + 1, {kBatch, 2}, kRows));
    const at::Tensor far = out(tokens(3 * index + 2, {kBatch, 5}, kRows));
    const auto score = [&](const at::Tensor& others) { return torch::bmm(others, words).squeeze(2).to(at::kFloat); };
    return -(torch::log_sigmoid(score(near)).sum(1) + torch::log_sigmoid(-score(far)).sum(1)).mean();
  }
  Embedding in = register_module("in", Embedding(EmbeddingOptions(kRows, kWidth).sparse(true)));
  Embedding out = register_module("out", Embedding(EmbeddingOptions(kRows, kWidth).sparse(true)));
};

// A siamese network: one table, looked up twice in a forward, whose sparse gradients autograd adds.
struct Siamese : torch::nn::Module {
  at::Tensor loss(std::int64_t index) {
    const at::Tensor left = table(tokens(2 * index, {kBatch}, kRows)),
                     right = table(tokens(2 * index + 1, {kBatch}, kRows));
    const at::Tensor output = head(torch::cat({left, right}, 1)).to(at::kFloat);
    return F::cross_entropy(output, tokens(index, {kBatch}, 5));
  }
  Embedding table = register_module("table", Embedding(EmbeddingOptions(kRows, kWidth).sparse(true)));
  Linear head = register_module("head", Linear(2 * kWidth, 5));
};

at::Tensor counted(std::int64_t begin, std::int64_t end, std::int64_t step = 1) {
  return at::arange(begin, end, step, device_of_rank());
}

// Features of a click: bags with sparse gradients beside dense layers.
struct Clicks : torch::nn::Module {
  at::Tensor loss(std::int64_t index) {
    const at::Tensor rows = tokens(index, {kBatch * 3}, kRows), offsets = counted(0, kBatch * 3, 3);
    const at::Tensor x = torch::cat({bag(rows, offsets).to(at::kFloat), numbers(index, {kBatch, 6})}, 1);
    const at::Tensor output = out(torch::relu(in(x))).squeeze(1).to(at::kFloat);
    return F::binary_cross_entropy_with_logits(output, tokens(index + 1, {kBatch}, 2).to(at::kFloat));
  }
  torch::nn::EmbeddingBag bag = register_module(
      "bag", torch::nn::EmbeddingBag(torch::nn::EmbeddingBagOptions(kRows, kWidth).mode(torch::kSum).sparse(true)));
  Linear in = register_module("in", Linear(kWidth + 6, 40)), out = register_module("out", Linear(40, 1));
};

// Rows are scaled down to the norm where they are looked up. All micro-batches of a step look the same rows up (which
// vary from step to step), each with labels of its own; some rows twice.
at::Tensor looked_up(int step, std::int64_t first) {
  return counted(0, kBatch).mul(step + 2).add(first).remainder(kRows / 2).repeat({2});
}
struct BoundedImpl : torch::nn::Module {
  at::Tensor loss(int step, std::int64_t index) {
    const at::Tensor left = table(looked_up(step, 0)), right = table(looked_up(step, 7));  // twice in one forward
    const at::Tensor output = head(torch::cat({left, right}, 1)).to(at::kFloat);
    return F::cross_entropy(output, tokens(index, {2 * kBatch}, 5));
  }
  Embedding table = register_module("table", Embedding(EmbeddingOptions(kRows, kWidth).max_norm(0.5)));
  Linear head = register_module("head", Linear(2 * kWidth, 5));
};
TORCH_MODULE(Bounded);

struct BoundedBagImpl : torch::nn::Module {
  at::Tensor loss(int step, std::int64_t index) {
    const at::Tensor output = head(bag(looked_up(step, 0).view({3, 4}))).to(at::kFloat);
    return F::cross_entropy(output, tokens(index, {3}, 5));
  }
  torch::nn::EmbeddingBag bag = register_module(
      "bag", torch::nn::EmbeddingBag(torch::nn::EmbeddingBagOptions(kRows, kWidth).mode(torch::kMean).max_norm(0.5)));
  Linear head = register_module("head", Linear(kWidth, 5));
};
TORCH_MODULE(BoundedBag);

template <class Model>
struct BoundedLookups : Program {
  explicit BoundedLookups(Run& run) : trainer(run.trainer(*model, kAdamW)) {}
  void step(Run& run, int step) override {
    {
      // An evaluation looks rows up too, other ones.
      const torch::NoGradGuard no_grad;
      run.record("evaluated " + std::to_string(step), model->loss(step + 20, 0));
    }
    run.each(step, [&](int, std::int64_t index) { trainer.backward(model->loss(step, index)); });
    trainer.step();
  }
  Model model;
  Trainer& trainer;
};

// Rows of each micro-batch's own, the same ones for some: what any of them looked up is scaled for all.
struct ManyBounded : torch::nn::Module {
  at::Tensor loss(std::int64_t index) {
    const at::Tensor output = head(table(tokens(index, {kBatch}, kRows / 4))).to(at::kFloat);
    return F::cross_entropy(output, tokens(index + 1, {kBatch}, 5));
  }
  Embedding table =
      register_module("table", Embedding(EmbeddingOptions(kRows, kWidth).max_norm(0.5).norm_type(1).sparse(true)));
  Linear head = register_module("head", Linear(kWidth, 5));
};

std::vector<ProgramRow> rows() {
  return {{"SkipGramWithSparseGradients", usual<SkipGram>(kPlainSgd)},
          {"ASparseTableLookedUpTwice", usual<Siamese>(kPlainSgd)},
          {"BagsWithSparseGradients", usual<Clicks>(kPlainSgd)},
          {"RowsOfBoundedNorm", program<BoundedLookups<Bounded>>()},
          {"RowsOfBoundedNormThatDifferBetweenRanks", usual<ManyBounded>(kPlainSgd)},
          {"BagsOfBoundedNorm", program<BoundedLookups<BoundedBag>>()}};
}

}  // namespace zero::test::programs_embeddings
