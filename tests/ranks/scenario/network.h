// The models of scenarios: blocks that each stand for something that a model may have, and two heads.
#pragma once

#include <torch/torch.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ranks/scenario/scenario.h"

namespace zero::test::scenario {

// Whose forward it is: some blocks choose by it which of their parts are used.
struct Use {
  std::int64_t index = 0;  // of the micro-batch
  int rank = 0;
};

class Block : public torch::nn::Module {
 public:
  virtual at::Tensor run(const at::Tensor& x, const Use& use) = 0;
};

struct BlockRow {
  std::string name;
  // `before`: the blocks that there are already.
  std::shared_ptr<Block> (*make)(std::int64_t width, const std::vector<std::shared_ptr<Block>>& before);
  bool random = false;   // draws random numbers
  bool buffers = false;  // evaluations see what a rank has trained with
  bool by_rank = false;  // not all ranks use the same of it
};
const std::vector<BlockRow>& block_rows();

class NetworkImpl : public torch::nn::Module {
 public:
  NetworkImpl(const Blocks& blocks, std::int64_t width);

  // Of the event's `which`: one loss, or two of one graph. The auxiliary one needs the first half of the blocks.
  std::vector<at::Tensor> losses(int which, const Use& use);
  // Each parameter once, that has elements of a floating-point type.
  std::vector<std::pair<std::string, at::Tensor>> parameters_once() const;
  // By an event's number, those of the blocks alone where it is not all.
  std::vector<std::pair<std::string, at::Tensor>> part(int number, bool heads = true) const;
  int parts() const;

 private:
  std::int64_t width_;
  std::vector<std::shared_ptr<Block>> blocks_;
  torch::nn::ModuleList list_;
  torch::nn::Linear head_, auxiliary_;
};
TORCH_MODULE(Network);

Network make_network(const Scenario& scenario, int rank);
bool draws(const Scenario& scenario);
bool has_buffers(const Scenario& scenario);
bool has_ranks_of_their_own(const Scenario& scenario);

}  // namespace zero::test::scenario
