// Ranks as threads, and runs of a training that are compared to the bit.
//
// A model of the tests is a torch::nn::Module with a member `at::Tensor loss(std::int64_t index)`: the
// loss of the global micro-batch `index`, whose data depends on nothing else.
#pragma once

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "zero/zero.h"

namespace zero::test {

// Where the ranks' models and their data are, and how the ranks are joined: on the CPU, unless a program of tests has
// other devices. A module that is moved elsewhere is the CPU's for plain LibTorch, too.
struct Surroundings {
  std::function<at::Device(int rank)> device = [](int) { return at::Device(at::kCPU); };
  std::function<World(const World& world)> joined = [](const World& world) { return world; };
  // Has devices do what is asked of them at times that the seed says; without one as usual.
  std::function<void(std::optional<std::uint64_t> seed)> delay = [](std::optional<std::uint64_t>) {};
};
Surroundings& surroundings();
// Of the rank that this thread is; of rank 0 outside of ranks.
at::Device device_of_rank();

// While one lives LibTorch computes by one thread where the calling one does: bits may depend on how many there are.
class OneThread {
 public:
  OneThread() { at::set_num_threads(1); }
  ~OneThread() { at::set_num_threads(before_); }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  int before_ = at::get_num_threads();
};

// Runs `rank` on as many threads and waits for all of them. The first exception is thrown again, as a
// RankError that begins with "rank r: ".
struct RankError : std::runtime_error {
  using std::runtime_error::runtime_error;
};
// `limit` of time for each operation; by default only a hang meets it. `ranks_per_host`: as InitOptions has it.
void run_ranks(int ranks, const std::function<void(const World&)>& rank,
               std::chrono::milliseconds limit = std::chrono::hours(1), int ranks_per_host = 0);
// On a thread of this rank, for whose end it waits.
void on_another_thread(const std::function<void()>& call);
// For ranks that are to disagree, which is said after a hundredth of the limit.
inline constexpr std::chrono::minutes kToDisagree{2};

// What the exception that `call` throws says; empty if it throws none.
inline std::string thrown_by(const std::function<void()>& call) try {
  call();
  return {};
} catch (const std::exception& error) {
  return error.what();
}

// Whether a text has all these words.
inline testing::AssertionResult says(const std::string& text, const std::vector<std::string>& words) {
  for (const std::string& word : words)
    if (text.find(word) == std::string::npos) return testing::AssertionFailure() << "no '" << word << "' in: " << text;
  return testing::AssertionSuccess();
}

// Random numbers and token ids that depend on the index alone.
at::Tensor numbers(std::int64_t index, at::IntArrayRef shape);
at::Tensor tokens(std::int64_t index, at::IntArrayRef shape, std::int64_t vocabulary);

// Values for every parameter: weights by `seed`, what has one dimension (biases, norms) around its own
// initial value.
void initialise(torch::nn::Module& module, std::int64_t seed);
inline constexpr std::int64_t kSeed = 7;

struct Outcome {
  std::vector<double> losses;
  std::vector<double> norms;
  std::map<std::string, at::Tensor> parameters;  // main values, and "NAME as stored"
  void record(const StepReport& report);
};

// The first difference in words; empty when there is none, to the bit, or within `tolerance` of the
// larger of 1 and the value.
std::string difference(const Outcome& a, const Outcome& b);
std::string difference(const Outcome& a, const Outcome& b, double tolerance);

// Epsilon is far above the rounding of a gradient that is zero by chance, which Adam would blow up.
struct Job {
  Plan plan = Plan::ddp();
  int ranks = 2;
  Optimizer optimizer = AdamW{.lr = 2e-3, .eps = 1e-4};
  Options options = {};
  int steps = 3;
  int shard = 0;           // ranks of a shard group; 0: all
  int tensor = 1;          // of the tensor axis, of all `ranks`
  bool automatic = false;  // what is cut over it, in usual loops
  int ranks_per_host = 0;  // see run_ranks()
  std::function<World(const World&)> joined = [](const World& world) { return world; };
  std::map<int, double> budgets = {};  // shares that ranks have of their own for activations

  Plan plan_of(int rank) const;
  int data_ranks() const { return ranks / tensor; }
};
Mesh mesh_of(const Job& job, const World& world);
std::vector<Plan> all_plans();
std::vector<Plan> plans_of_meshes();  // the same and the hybrids
std::string describe(const Job& job);

// Parameters of a parameterised test: ranks, micro-batches a step, precision.
using Shape = std::tuple<int, int, Precision>;

// Letters and digits only, as a test's name must have them.
std::string in_title(int ranks, int accumulate, Precision precision);
std::string in_title(std::string text);

// Collective.
std::map<std::string, at::Tensor> parameters_of(torch::nn::Module& module, const Engine& engine);
// The ranks' runs, which must all be the same.
Outcome agreed(const std::vector<Outcome>& runs);

// What training the job means without the library.
class PlainTrainer {
 public:
  PlainTrainer(torch::nn::Module& module, const Job& job);
  // Adds the gradients of one of the global batch's micro-batches.
  void backward(const at::Tensor& loss);
  void step();
  Outcome finish();

 private:
  void set_learning_rate();

  torch::nn::Module& module_;
  Job job_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  std::vector<ParameterRule> rules_;
  double loss_ = 0;
  int steps_ = 0;
  Outcome run_;
};

// How a model is made and what happens to it between steps.
template <class Model>
struct Course {
  std::function<std::shared_ptr<Model>()> make = [] { return std::make_shared<Model>(); };
  std::function<void(Model& model, int step)> before_step = [](Model&, int) {};
};

// The same whatever the model is, so that what trains it is compiled once.
struct AnyModel {
  std::shared_ptr<torch::nn::Module> module;
  std::function<at::Tensor(std::int64_t index)> loss;
  std::function<void(int step)> before_step;
};
using MakeModel = std::function<AnyModel()>;

template <class Model>
MakeModel any_model(const Course<Model>& course) {
  return [course] {
    const std::shared_ptr<Model> model = course.make();
    return AnyModel{model, [model](std::int64_t index) { return model->loss(index); },
                    [model, course](int step) { course.before_step(*model, step); }};
  };
}

// Calls body(module, engine, rank) on every rank of the job with a module of its own.
void on_each_rank(const Job& job, const std::function<std::shared_ptr<torch::nn::Module>()>& make,
                  const std::function<void(torch::nn::Module&, Engine&, int)>& body);

// Calls body(model, engine, rank) on every rank of the job with a model of its own.
template <class Model, class Body>
void on_ranks(const Job& job, const Course<Model>& course, const Body& body) {
  on_each_rank(job, course.make, [&](torch::nn::Module& module, Engine& engine, int rank) {
    body(static_cast<Model&>(module), engine, rank);
  });
}

// One step of the usual loop.
template <class Model>
StepReport train_step(Model& model, Engine& engine) {
  for (int micro = 0; micro < engine.plan().accumulate(); ++micro) engine.backward(model.loss(engine.micro_batch()));
  return engine.step();
}

// A run of loop(module, engine, outcome, rank), which records its steps in the outcome.
using AnyLoop = std::function<void(torch::nn::Module&, Engine&, Outcome&, int)>;
Outcome train_by_loop(const Job& job, const std::function<std::shared_ptr<torch::nn::Module>()>& make,
                      const AnyLoop& loop);

template <class Model, class Loop>
Outcome train_by(const Job& job, const Course<Model>& course, const Loop& loop) {
  return train_by_loop(job, course.make, [&](torch::nn::Module& module, Engine& engine, Outcome& run, int rank) {
    loop(static_cast<Model&>(module), engine, run, rank);
  });
}

// The usual loop.
Outcome train_any(const Job& job, const MakeModel& make);

template <class Model>
Outcome train(const Job& job, const Course<Model>& course = {}) {
  return train_any(job, any_model(course));
}

// The same global batches in one process with torch::optim.
Outcome train_any_plain(const Job& job, const MakeModel& make);

template <class Model>
Outcome train_plain(const Job& job, const Course<Model>& course = {}) {
  return train_any_plain(job, any_model(course));
}

// Calls body(job) with the job under every plan.
template <class Body>
void under_every_plan(Job job, const Body& body) {
  const Plan settings = job.plan;
  for (const Plan& plan : all_plans()) {
    job.plan = plan.precision(settings.precision()).accumulate(settings.accumulate());
    SCOPED_TRACE(describe(job));
    body(job);
  }
}

}  // namespace zero::test
