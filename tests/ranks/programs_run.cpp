#include <torch/torch.h>

#include "programs.h"

namespace zero::test {
namespace {

// Several networks' gradients may reach this one: what did is dropped before its own backward, as everyone does.
class PlainNetwork : public Trainer {
 public:
  PlainNetwork(torch::nn::Module& network, const Job& job) : network_(network), trainer_(network, job) {}
  void backward(const at::Tensor& loss) override {
    if (std::exchange(fresh_, false)) network_.zero_grad();
    trainer_.backward(loss);
  }
  void step() override {
    trainer_.step();
    fresh_ = true;
  }
  Outcome finish() override { return trainer_.finish(); }

 private:
  torch::nn::Module& network_;
  PlainTrainer trainer_;
  bool fresh_ = true;
};

bool any_cut(const torch::nn::Module& network, const Options& options) {
  for (const auto& item : network.named_parameters())
    if (options.tensor && options.tensor({item.key(), item.value().sizes().vec()})) return true;
  return false;
}

class EngineNetwork : public Trainer {
 public:
  EngineNetwork(torch::nn::Module& network, const Job& job, const Mesh& mesh)
      : network_(network), engine_(network, mesh, job.plan_of(mesh.world().rank()), job.optimizer, job.options) {}
  void backward(const at::Tensor& loss) override { engine_.backward(loss); }
  void step() override {
    const StepReport report = engine_.step();
    EXPECT_TRUE(report.applied);
    run_.record(report);
  }
  Outcome finish() override {
    run_.parameters = parameters_of(network_, engine_);
    return run_;
  }

 private:
  torch::nn::Module& network_;
  Engine engine_;
  Outcome run_;
};

class UsualLoop : public Program {
 public:
  UsualLoop(AnyModel model, Trainer& trainer) : model_(std::move(model)), trainer_(trainer) {}
  void step(Run& run, int step) override {
    model_.before_step(step);
    run.each(step, [&](int, std::int64_t index) { trainer_.backward(model_.loss(index)); });
    trainer_.step();
  }

 private:
  AnyModel model_;
  Trainer& trainer_;
};

Result run_program(const Job& job, const MakeProgram& make, const World* world) {
  std::unique_ptr<Program> program;
  Run run(job, world);
  program = make(run);
  for (int step = 0; step < job.steps; ++step) program->step(run, step);
  program->finish(run);
  return {run.finish(), run.starts()};
}

at::Tensor copied(const at::Tensor& value) {
  return whole(value.detach().to(at::kCPU, value.scalar_type(), /*non_blocking=*/false, /*copy=*/true));
}

}  // namespace

MakeProgram usual_loop(const MakeModel& make, const Optimizer& optimizer, const Options& options) {
  return [=](Run& run) -> std::unique_ptr<Program> {
    const AnyModel model = make();
    run.cut_automatically(*model.module, [&] { model.loss(0).backward(); });
    return std::make_unique<UsualLoop>(model, run.trainer(*model.module, optimizer, options));
  };
}

Result run_plain(const Job& job, const MakeProgram& make) {
  return run_program(job, make, nullptr);
}

std::vector<Outcome> run_on_ranks(const Job& job, const MakeProgram& make) {
  std::vector<std::vector<Outcome>> of_ranks(static_cast<std::size_t>(job.ranks));
  run_ranks(job.ranks, [&](const World& world) {
    of_ranks[static_cast<std::size_t>(world.rank())] = run_program(job, make, &world).outcomes;
  });
  std::vector<Outcome> outcomes;
  for (std::size_t i = 0; i < of_ranks.front().size(); ++i) {
    std::vector<Outcome> runs;
    for (const std::vector<Outcome>& rank : of_ranks) runs.push_back(rank.at(i));
    outcomes.push_back(agreed(runs));
  }
  return outcomes;
}

void Run::cut_automatically(torch::nn::Module& network, const std::function<void()>& micro_batch) {
  if (!job_.automatic) return;
  if (const at::Device device = device_of_rank(); !device.is_cpu()) network.to(device);
  initialise(network, kSeed);
  job_.options.tensor = tensor_automatic(network, job_.tensor, micro_batch);
}

Trainer& Run::trainer(torch::nn::Module& network, const Optimizer& optimizer, const Options& options) {
  // Along the tensor axis all ranks have a network of which nothing is cut.
  const Mesh mesh =
      plain() || job_.tensor == 1 || any_cut(network, job_.options) ? mesh_.value_or(World()) : mesh_->data();
  const int rank = mesh.world().rank();
  if (const at::Device device = device_of_rank(); !device.is_cpu()) network.to(device);
  initialise(network, kSeed + 100 * static_cast<std::int64_t>(trainers_.size()) + rank);
  Job job = job_;
  job.optimizer = optimizer;
  job.options = options;
  job.options.disk = job_.options.disk;
  job.options.tensor = job_.options.tensor;
  std::map<std::string, at::Tensor> start;
  for (const auto& item : network.named_parameters()) start[item.key()] = copied(item.value());
  starts_.push_back(std::move(start));
  if (plain()) {
    trainers_.push_back(std::make_unique<PlainNetwork>(network, job));
  } else {
    trainers_.push_back(std::make_unique<EngineNetwork>(network, job, mesh));
  }
  return *trainers_.back();
}

void Run::each(int step, const std::function<void(int lane, std::int64_t index)>& body) const {
  const auto call = [&](int lane) { body(lane, static_cast<std::int64_t>(step) * lanes() + lane); };
  if (plain()) {
    for (int lane = 0; lane < lanes(); ++lane) call(lane);
    return;
  }
  // Which micro-batch of a reproducible sum is whose.
  const bool reduces_each = job_.plan[State::gradient].between.shard == Placement::sharded;
  const int micro_batches = job_.plan.accumulate(), rank = world_->rank() / job_.tensor;
  for (int micro = 0; micro < micro_batches; ++micro)
    call(reduces_each ? micro * job_.data_ranks() + rank : rank * micro_batches + micro);
}

void Run::record(const std::string& name, const at::Tensor& value) {
  recorded_[name] = copied(value);
}

std::vector<Outcome> Run::finish() {
  std::vector<Outcome> outcomes;
  outcomes.reserve(trainers_.size() + 1);
  for (const auto& trainer : trainers_) outcomes.push_back(trainer->finish());
  outcomes.push_back({{}, {}, recorded_});
  return outcomes;
}

}  // namespace zero::test
