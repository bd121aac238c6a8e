#include "ranks/scenario/network.h"

#include <algorithm>
#include <functional>
#include <unordered_set>

#include "ranks/harness.h"
#include "ranks/scenario/settings.h"
#include "zero/tiled_linear.h"

namespace zero::test::scenario {
namespace {

using Before = std::vector<std::shared_ptr<Block>>;
constexpr std::int64_t kBatch = 4, kOut = 3, kVocabulary = 11;

class LinearBlock : public Block {
 public:
  explicit LinearBlock(std::int64_t width) : layer(register_module("layer", torch::nn::Linear(width, width))) {}
  at::Tensor run(const at::Tensor& x, const Use&) override { return x + torch::gelu(layer(x)); }
  torch::nn::Linear layer;
};

class MlpBlock : public Block {
 public:
  explicit MlpBlock(std::int64_t width)
      : up(register_module("up", torch::nn::Linear(torch::nn::LinearOptions(width, 3 * width).bias(false)))),
        down(register_module("down", torch::nn::Linear(3 * width, width))) {}
  at::Tensor run(const at::Tensor& x, const Use&) override { return x + down(torch::silu(up(x))); }
  torch::nn::Linear up, down;
};

class NormBlock : public Block {
 public:
  explicit NormBlock(std::int64_t width)
      : norm(register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})))) {}
  at::Tensor run(const at::Tensor& x, const Use&) override { return norm(x); }
  torch::nn::LayerNorm norm;
};

class BatchNormBlock : public Block {
 public:
  explicit BatchNormBlock(std::int64_t width) : norm(register_module("norm", torch::nn::BatchNorm1d(width))) {}
  at::Tensor run(const at::Tensor& x, const Use&) override { return x + norm(x); }
  torch::nn::BatchNorm1d norm;
};

class ConvolutionBlock : public Block {
 public:
  explicit ConvolutionBlock(std::int64_t)
      : in(register_module("in", torch::nn::Conv1d(torch::nn::Conv1dOptions(1, 5, 3).padding(1)))),
        out(register_module("out", torch::nn::Conv1d(torch::nn::Conv1dOptions(5, 1, 3).padding(1).bias(false)))) {}
  at::Tensor run(const at::Tensor& x, const Use&) override {
    return x + out(torch::relu(in(x.unsqueeze(1)))).squeeze(1);
  }
  torch::nn::Conv1d in, out;
};

// Of which memory is not in row-major order.
class ChannelsLastBlock : public Block {
 public:
  explicit ChannelsLastBlock(std::int64_t)
      : in(register_module("in", torch::nn::Conv2d(torch::nn::Conv2dOptions(2, 3, 3).padding(1)))),
        out(register_module("out", torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 2, {1, 3}).padding({0, 1})))) {
    for (torch::nn::Conv2d& each : {std::ref(in), std::ref(out)})
      each->weight.set_data(each->weight.data().contiguous(at::MemoryFormat::ChannelsLast));
  }
  at::Tensor run(const at::Tensor& x, const Use&) override {
    const at::Tensor image = x.reshape({x.size(0), 2, 2, x.size(1) / 4});
    return x + out(torch::relu(in(image))).reshape(x.sizes());
  }
  torch::nn::Conv2d in, out;
};

class EmbeddingBlock : public Block {
 public:
  explicit EmbeddingBlock(std::int64_t width)
      : embed(register_module("embed", torch::nn::Embedding(kVocabulary, width))) {}
  at::Tensor run(const at::Tensor& x, const Use& use) override {
    return x + embed(tokens(use.index, {x.size(0)}, kVocabulary));
  }
  torch::nn::Embedding embed;
};

// Behind a parameter: what is drawn before the first use of any is the program's.
class DropoutBlock : public Block {
 public:
  explicit DropoutBlock(std::int64_t width)
      : gain(register_parameter("gain", at::ones({width}))),
        dropout(register_module("dropout", torch::nn::Dropout(0.25))) {}
  at::Tensor run(const at::Tensor& x, const Use&) override { return dropout(x * gain); }
  at::Tensor gain;
  torch::nn::Dropout dropout;
};

class NestedBlock : public Block {
 public:
  explicit NestedBlock(std::int64_t width)
      : first(torch::nn::Linear(width, width), torch::nn::GELU()),
        second(torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})), torch::nn::Linear(width, width)) {
    list->push_back(first);
    list->push_back(second);
    register_module("list", list);
  }
  at::Tensor run(const at::Tensor& x, const Use&) override { return x + second->forward(first->forward(x)); }
  torch::nn::Sequential first, second;
  torch::nn::ModuleList list;
};

// Each rank, or each micro-batch, uses one of them; the last is used by nobody.
class ExpertsBlock : public Block {
 public:
  explicit ExpertsBlock(std::int64_t width, bool by_rank) : by_rank_(by_rank) {
    for (int i = 0; i < 3; ++i) list->push_back(torch::nn::Linear(width, width));
    register_module("list", list);
  }
  at::Tensor run(const at::Tensor& x, const Use& use) override {
    const std::int64_t chosen = by_rank_ ? use.rank : use.index;
    return x + torch::gelu(list[static_cast<std::size_t>(chosen % 2)]->as<torch::nn::Linear>()->forward(x));
  }

 private:
  bool by_rank_;
  torch::nn::ModuleList list;
};

class UnusedBlock : public Block {
 public:
  explicit UnusedBlock(std::int64_t width) : layer(register_module("layer", torch::nn::Linear(width, width))) {}
  at::Tensor run(const at::Tensor& x, const Use&) override { return x; }
  torch::nn::Linear layer;
};

class FrozenBlock : public LinearBlock {
 public:
  explicit FrozenBlock(std::int64_t width, bool weight) : LinearBlock(width) {
    if (weight) layer->weight.requires_grad_(false);
    layer->bias.requires_grad_(false);
  }
};

// Nothing, one element, and one that is used but in one of two micro-batches.
class SmallBlock : public Block {
 public:
  explicit SmallBlock(std::int64_t width)
      : empty(register_parameter("empty", at::zeros({0, width}))),
        norm(register_parameter("norm", at::ones({}))),
        seldom(register_parameter("seldom", at::zeros({width}))) {}
  at::Tensor run(const at::Tensor& x, const Use& use) override {
    return use.index % 2 == 0 ? x * norm : x * norm + seldom;
  }
  at::Tensor empty, norm, seldom;
};

class DoubleBlock : public Block {
 public:
  explicit DoubleBlock(std::int64_t width)
      : wide(register_parameter("wide", at::zeros({width}, at::kDouble))),
        numbers(register_parameter("numbers", at::arange(3), /*requires_grad=*/false)) {}
  at::Tensor run(const at::Tensor& x, const Use&) override {
    return x + (x.to(at::kDouble) * wide).to(x.scalar_type());
  }
  at::Tensor wide, numbers;
};

class RecurrentBlock : public Block {
 public:
  explicit RecurrentBlock(std::int64_t width) : cell(register_module("cell", torch::nn::GRUCell(width, width))) {}
  at::Tensor run(const at::Tensor& x, const Use&) override { return cell(x, x.mul(0.5)); }
  torch::nn::GRUCell cell;
};

class TiledBlock : public Block {
 public:
  explicit TiledBlock(std::int64_t width)
      : layer(register_module("layer", TiledLinear(torch::nn::LinearOptions(width, width), 2))) {}
  at::Tensor run(const at::Tensor& x, const Use&) override { return x + torch::gelu(layer(x)); }
  TiledLinear layer;
};

// A layer of a block before, as a module or by its weight alone.
class SharingBlock : public Block {
 public:
  explicit SharingBlock(const torch::nn::Linear& other, bool module) {
    if (module)
      layer_ = register_module("layer", other);
    else
      weight_ = register_parameter("weight", other->weight, other->weight.requires_grad());
  }
  at::Tensor run(const at::Tensor& x, const Use&) override {
    return x + torch::tanh(layer_ ? layer_(x) : torch::linear(x, weight_));
  }

 private:
  torch::nn::Linear layer_ = nullptr;
  at::Tensor weight_;
};

template <class Made>
std::shared_ptr<Block> make(std::int64_t width, const Before&) {
  return std::make_shared<Made>(width);
}

template <class Made, bool kOption>
std::shared_ptr<Block> make(std::int64_t width, const Before&) {
  return std::make_shared<Made>(width, kOption);
}

template <bool kModule>
std::shared_ptr<Block> share(std::int64_t width, const Before& before) {
  for (const auto& block : before)
    if (const auto linear = std::dynamic_pointer_cast<LinearBlock>(block))
      return std::make_shared<SharingBlock>(linear->layer, kModule);
  return std::make_shared<LinearBlock>(width);
}

template <class Tensors>
void once(const Tensors& named, std::unordered_set<const void*>& seen,
          std::vector<std::pair<std::string, at::Tensor>>& parameters) {
  for (const auto& item : named)
    if (item.value().is_floating_point() && seen.insert(item.value().unsafeGetTensorImpl()).second)
      parameters.emplace_back(item.key(), item.value());
}

}  // namespace

const std::vector<BlockRow>& block_rows() {
  static const std::vector<BlockRow> all = {
      {"linear", make<LinearBlock>},
      {"mlp", make<MlpBlock>},
      {"norm", make<NormBlock>},
      {"batch norm", make<BatchNormBlock>, false, true},
      {"convolution", make<ConvolutionBlock>},
      {"channels last", make<ChannelsLastBlock>},
      {"embedding", make<EmbeddingBlock>},
      {"dropout", make<DropoutBlock>, true},
      {"nested", make<NestedBlock>},
      {"experts by rank", make<ExpertsBlock, true>, false, false, true},
      {"experts by micro-batch", make<ExpertsBlock, false>},
      {"unused", make<UnusedBlock>},
      {"frozen", make<FrozenBlock, true>},
      {"frozen bias", make<FrozenBlock, false>},
      {"small", make<SmallBlock>},
      {"double", make<DoubleBlock>},
      {"recurrent", make<RecurrentBlock>},
      {"tiled", make<TiledBlock>},
      {"shared layer", share<true>},
      {"shared weight", share<false>},
  };
  return all;
}

NetworkImpl::NetworkImpl(const Blocks& blocks, std::int64_t width)
    : width_(width), head_(nullptr), auxiliary_(nullptr) {
  for (const int each : blocks) {
    blocks_.push_back(block_rows()[static_cast<std::size_t>(each)].make(width, blocks_));
    list_->push_back(blocks_.back());
  }
  register_module("blocks", list_);
  head_ = register_module("head", torch::nn::Linear(width, kOut));
  auxiliary_ = register_module("auxiliary", torch::nn::Linear(width, 1));
}

std::vector<at::Tensor> NetworkImpl::losses(int which, const Use& use) {
  const bool wants_main = which != 1, wants_auxiliary = which != 0;
  at::Tensor x = numbers(use.index, {kBatch, width_}), auxiliary;
  const std::size_t half = (blocks_.size() + 1) / 2;
  for (std::size_t i = 0; i <= blocks_.size(); ++i) {
    if (i == half && wants_auxiliary) auxiliary = 0.5 * auxiliary_(x).square().mean();
    if (i == blocks_.size() || (i >= half && !wants_main)) break;
    x = blocks_[i]->run(x, use);
  }
  if (!wants_main) return {auxiliary};
  const at::Tensor main = torch::mse_loss(head_(x), numbers(use.index + 7919, {kBatch, kOut}));
  if (which == 2) return {main + auxiliary};
  return wants_auxiliary ? std::vector{main, auxiliary} : std::vector{main};
}

std::vector<std::pair<std::string, at::Tensor>> NetworkImpl::parameters_once() const {
  std::unordered_set<const void*> seen;
  std::vector<std::pair<std::string, at::Tensor>> all;
  once(named_parameters(), seen, all);
  return all;
}

int NetworkImpl::parts() const {
  return 1 + static_cast<int>(blocks_.size() + list_->parameters().size());
}

std::vector<std::pair<std::string, at::Tensor>> NetworkImpl::part(int number, bool heads) const {
  if (number == 0 && heads) return parameters_once();
  std::vector<std::pair<std::string, at::Tensor>> all, chosen;
  std::unordered_set<const void*> seen;
  once(list_->named_parameters(), seen, all);
  if (number == 0 || all.empty()) return all;
  const auto at = static_cast<std::size_t>(number - 1);
  if (at >= blocks_.size()) return {all[(at - blocks_.size()) % all.size()]};
  seen.clear();
  once(blocks_[at]->named_parameters(), seen, chosen);
  return chosen;
}

Network make_network(const Scenario& scenario, int rank) {
  Network network(scenario.blocks, width_of(scenario));
  initialise(*network, kSeed + rank);
  return network;
}

namespace {
bool any(const Scenario& scenario, bool BlockRow::*is) {
  return std::any_of(scenario.blocks.begin(), scenario.blocks.end(),
                     [&](int each) { return block_rows()[static_cast<std::size_t>(each)].*is; });
}
}  // namespace

bool draws(const Scenario& scenario) {
  return any(scenario, &BlockRow::random);
}

bool has_buffers(const Scenario& scenario) {
  return any(scenario, &BlockRow::buffers);
}

bool has_ranks_of_their_own(const Scenario& scenario) {
  return any(scenario, &BlockRow::by_rank);
}

}  // namespace zero::test::scenario
