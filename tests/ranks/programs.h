// Programs as others write them against LibTorch: networks of plain torch::nn modules, an optimizer for each, a loop.
// The same code runs in one process with torch::optim over the global batch, and on ranks with an engine for each
// network; zero::gather leaves parameters alone that no engine has.
//
// A program is a row in the file that it stands in. programs_test.cpp lists the files, and what holds of every program.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
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
  Run(const Job& job, const World* world) : job_(job), world_(world) {
    if (world != nullptr) mesh_.emplace(mesh_of(job, *world));
  }

  // Moves the network to the rank's device and gives it its first values and a trainer. Collective.
  Trainer& trainer(torch::nn::Module& network, const Optimizer& optimizer, const Options& options = {});

  // Where the job says so, what is cut of the network follows from this micro-batch.
  void cut_automatically(torch::nn::Module& network, const std::function<void()>& micro_batch);

  // Calls body(lane, index) for this process's micro-batches of the step: `lane` is the place in the global batch,
  // for what is carried from step to step, `index` that in the whole run, for data.
  void each(int step, const std::function<void(int lane, std::int64_t index)>& body) const;
  int lanes() const { return job_.data_ranks() * job_.plan.accumulate(); }
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
  std::optional<Mesh> mesh_;
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

template <class P>
MakeProgram program() {
  return [](Run& run) -> std::unique_ptr<Program> { return std::make_unique<P>(run); };
}

// Adam's own epsilon would blow up the rounding of small gradients.
inline const AdamW kAdamW{.lr = 1e-2, .eps = 1e-3};
inline const Sgd kSgdMomentum{.lr = 0.1, .momentum = 0.9};

// The usual loop: a loss for each micro-batch, a step for each global batch.
MakeProgram usual_loop(const MakeModel& make, const Optimizer& optimizer, const Options& options);

template <class Model>
MakeProgram usual(const Optimizer& optimizer = kAdamW, const Course<Model>& course = {}, const Options& options = {}) {
  return usual_loop(any_model(course), optimizer, options);
}

// What one run gives; `starts` as Run has it.
struct Result {
  std::vector<Outcome> outcomes;
  std::vector<std::map<std::string, at::Tensor>> starts;
};
// In this process, without the library; and on the job's ranks, which must all give the same.
Result run_plain(const Job& job, const MakeProgram& make);
std::vector<Outcome> run_on_ranks(const Job& job, const MakeProgram& make);

struct Expected {
  int steps = 4;
  std::vector<int> ranks = {1, 2, 3};
  bool plain = true;         // false: draws random numbers of the engine's, which torch::optim's run has not
  bool reproducible = true;  // false: several backwards of a micro-batch, which a reproducible plan refuses
  double tolerance = 1e-5;   // how far losses, norms and changes in fp32 may be from plain ones, of the largest
  double bf16 = 0.05;        // how far losses in bf16 may be from plain ones in fp32, of the largest
};

// Of models that are there for one thing each.
inline Expected strictly_on(std::vector<int> ranks, int steps = 3) {
  return {.steps = steps, .ranks = std::move(ranks), .tolerance = 1e-6};
}

struct ProgramRow {
  std::string name;
  MakeProgram make;
  Expected expected = {};
};
inline void PrintTo(const ProgramRow& row, std::ostream* out) {
  *out << row.name;
}

// Of each file.
namespace programs_adapters {
std::vector<ProgramRow> rows();
}
namespace programs_adversarial {
std::vector<ProgramRow> rows();
}
namespace programs_embeddings {
std::vector<ProgramRow> rows();
}
namespace programs_policies {
std::vector<ProgramRow> rows();
}
namespace programs_recurrent {
std::vector<ProgramRow> rows();
}
namespace programs_targets {
std::vector<ProgramRow> rows();
}
namespace programs_weights {
std::vector<ProgramRow> rows();
}
namespace modules_test {
std::vector<ProgramRow> rows();
}
namespace sharing_test {
std::vector<ProgramRow> of_shared_parameters(), of_frozen_parameters(), of_unused_parameters();
}
namespace max_norm_test {
std::vector<ProgramRow> rows();
}

}  // namespace zero::test
