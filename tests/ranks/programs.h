// Programs as others write them against LibTorch: networks of plain torch::nn modules, an optimizer for each, a loop.
// The same code runs in one process with torch::optim over the global batch, and on ranks with an engine for each
// network; zero::gather leaves parameters alone that no engine has.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "harness.h"

namespace zero::test {

// What trains one network.
class Trainer {
 public:
  virtual ~Trainer() = default;
  virtual void backward(const at::Tensor& loss) = 0;  // of one micro-batch; several before a step add up
  virtual void step() = 0;
  virtual Outcome finish() = 0;
};

// One run of a program: on one rank, or in one process without the library.
class Run {
 public:
  // Without a world: all micro-batches of the global batch are this process's.
  Run(const Job& job, const World* world) : job_(job), world_(world) {}

  // Gives the network its first values and a trainer. Collective.
  Trainer& trainer(torch::nn::Module& network, const Optimizer& optimizer, const Options& options = {});

  // Calls body(lane, index) for this process's micro-batches of the step: `lane` is the place in the global batch,
  // for what is carried from step to step, `index` that in the whole run, for data.
  void each(int step, const std::function<void(int lane, std::int64_t index)>& body) const;
  int lanes() const { return job_.ranks * job_.plan.accumulate(); }
  bool plain() const { return world_ == nullptr; }

  // Compared beside the networks; the same on every rank.
  void record(const std::string& name, const at::Tensor& value);
  // Losses, norms and parameters of all trainers, by their numbers.
  std::vector<Outcome> finish();
  // Of each trainer, the values that the network began with.
  const std::vector<std::map<std::string, at::Tensor>>& starts() const { return starts_; }

 private:
  Job job_;
  const World* world_;
  std::vector<std::unique_ptr<Trainer>> trainers_;
  std::vector<std::map<std::string, at::Tensor>> starts_;
  std::map<std::string, at::Tensor> recorded_;
};

class Program {
 public:
  virtual ~Program() = default;
  virtual void step(Run& run, int step) = 0;
  virtual void finish(Run&) {}  // records what is to be compared beside the networks
};

using MakeProgram = std::function<std::unique_ptr<Program>(Run&)>;

struct Expected {
  int steps = 4;
  bool plain = true;   // false: draws random numbers of the engine's, which torch::optim's run has not
  double bf16 = 0.05;  // how far losses in bf16 may be from plain ones in fp32, of the largest
};

// On 1, 2 and 3 ranks: in fp32 every plan gives what torch::optim computes, within 1e-5 of the change; in fp32 and
// bf16 every plan gives ddp's bits.
void expect_as_plain(const MakeProgram& make, const Expected& expected);
// With `reproducible`, 2 ranks with one micro-batch and with two give the bits of 1 rank with two and with four.
void expect_same_on_one_rank(const MakeProgram& make, const Expected& expected);

template <class P>
void expect_as_plain(const Expected& expected = {}) {
  expect_as_plain([](Run& run) -> std::unique_ptr<Program> { return std::make_unique<P>(run); }, expected);
}
template <class P>
void expect_same_on_one_rank(const Expected& expected = {}) {
  expect_same_on_one_rank([](Run& run) -> std::unique_ptr<Program> { return std::make_unique<P>(run); }, expected);
}

// Adam's own epsilon would blow up the rounding of small gradients.
inline const AdamW kAdamW{.lr = 1e-2, .eps = 1e-3};
inline const Sgd kSgdMomentum{.lr = 0.1, .momentum = 0.9};

}  // namespace zero::test
