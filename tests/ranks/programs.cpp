#include "programs.h"

#include <algorithm>
#include <cmath>
#include <sstream>

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

class EngineNetwork : public Trainer {
 public:
  EngineNetwork(torch::nn::Module& network, const Job& job, const World& world)
      : network_(network), engine_(network, world, job.plan, job.optimizer, job.options) {}
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

struct Result {
  std::vector<Outcome> outcomes;
  std::vector<std::map<std::string, at::Tensor>> starts;
};

Result run_program(const Job& job, const MakeProgram& make, const World* world) {
  std::unique_ptr<Program> program;
  Run run(job, world);
  program = make(run);
  for (int step = 0; step < job.steps; ++step) program->step(run, step);
  program->finish(run);
  return {run.finish(), run.starts()};
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

double largest(const at::Tensor& values) {
  return values.numel() == 0 ? 0 : values.to(at::kDouble).abs().max().item<double>();
}

std::string not_close(const std::string& what, double distance, double limit) {
  if (distance <= limit) return {};
  std::ostringstream text;
  text << what << ": " << distance << " apart, " << limit << " allowed";
  return text.str();
}

std::string not_close(const char* what, const std::vector<double>& plain, const std::vector<double>& run,
                      double tolerance) {
  if (plain.size() != run.size()) return std::string(what) + ": other count";
  double scale = 0, distance = 0;
  for (std::size_t i = 0; i < plain.size(); ++i) {
    scale = std::max(scale, std::abs(plain[i]));
    // Not std::max: what is not a number must show.
    if (!(std::abs(plain[i] - run[i]) <= distance)) distance = std::abs(plain[i] - run[i]);
  }
  return not_close(what, distance, tolerance * scale);
}

constexpr double kTolerance = 1e-5;
constexpr double kRounding = 0x1p-22;  // of weights that a few steps round

// What differs from the plain run, in parameters by more than kTolerance of the change.
std::string far_from(const Outcome& plain, const std::map<std::string, at::Tensor>& start, const Outcome& run) {
  if (std::string text = not_close("losses", plain.losses, run.losses, kTolerance); !text.empty()) return text;
  if (std::string text = not_close("norms", plain.norms, run.norms, kTolerance); !text.empty()) return text;
  for (const auto& [name, value] : plain.parameters) {
    const auto first = start.find(name);  // what is recorded is not a network's: its whole value counts
    const double change = largest(first == start.end() ? value : value - first->second);
    const at::Tensor other = run.parameters.at(name);
    if (other.sizes() != value.sizes()) return name + ": other shape";
    if (std::string text = not_close(name, largest(value.to(at::kDouble) - other.to(at::kDouble)),
                                     kTolerance * change + kRounding * largest(value));
        !text.empty())
      return text;
  }
  return {};
}

// Body of a case; what it throws fails the case and not those that follow.
template <class Body>
void in_case(const Job& job, const Body& body) {
  SCOPED_TRACE(describe(job));
  try {
    body();
  } catch (const std::exception& error) {
    const std::string text = error.what();
    ADD_FAILURE() << text.substr(0, text.find("\nException raised from"));
  }
}

void expect_same(const std::vector<Outcome>& a, const std::vector<Outcome>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) EXPECT_EQ(difference(a[i], b[i]), "") << "network " << i;
}

void expect_change(const Result& plain) {
  for (std::size_t i = 0; i < plain.starts.size(); ++i) {
    double change = 0;
    for (const auto& [name, value] : plain.outcomes[i].parameters)
      change = std::max(change, largest(value - plain.starts[i].at(name)));
    EXPECT_GT(change, 1e-3) << "network " << i << " does not learn";
  }
}

void expect_close(const Result& plain, const std::vector<Outcome>& run, const Job& job, const Expected& expected) {
  ASSERT_EQ(plain.outcomes.size(), run.size());
  for (std::size_t i = 0; i < run.size(); ++i) {
    static const std::map<std::string, at::Tensor> none;
    const Outcome& outcome = plain.outcomes[i];
    const auto& start = i < plain.starts.size() ? plain.starts[i] : none;
    const std::string text = job.plan.precision() == Precision::fp32
                                 ? far_from(outcome, start, run[i])
                                 : not_close("losses", outcome.losses, run[i].losses, expected.bf16);
    EXPECT_EQ(text, "") << "network " << i;
  }
}

constexpr Precision kPrecisions[] = {Precision::fp32, Precision::bf16};

void expect_equal_plans(Job job, const Result& plain, const MakeProgram& make, const Expected& expected) {
  std::vector<Outcome> ddp;
  for (const Plan& plan : all_plans()) {
    job.plan = plan.precision(job.plan.precision());
    in_case(job, [&] {
      const std::vector<Outcome> run = run_on_ranks(job, make);
      if (expected.plain) expect_close(plain, run, job, expected);
      if (ddp.empty()) {
        ddp = run;
      } else {
        expect_same(ddp, run);
      }
    });
  }
}

}  // namespace

Trainer& Run::trainer(torch::nn::Module& network, const Optimizer& optimizer, const Options& options) {
  const int rank = plain() ? 0 : world_->rank();
  initialise(network, kSeed + 100 * static_cast<std::int64_t>(trainers_.size()) + rank);
  Job job = job_;
  job.optimizer = optimizer;
  job.options = options;
  std::map<std::string, at::Tensor> start;
  for (const auto& item : network.named_parameters()) start[item.key()] = item.value().detach().clone();
  starts_.push_back(std::move(start));
  if (plain()) {
    trainers_.push_back(std::make_unique<PlainNetwork>(network, job));
  } else {
    trainers_.push_back(std::make_unique<EngineNetwork>(network, job, *world_));
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
  const int micro_batches = job_.plan.accumulate(), rank = world_->rank();
  for (int micro = 0; micro < micro_batches; ++micro)
    call(reduces_each ? micro * job_.ranks + rank : rank * micro_batches + micro);
}

void Run::record(const std::string& name, const at::Tensor& value) {
  recorded_[name] = value.detach().clone();
}

std::vector<Outcome> Run::finish() {
  std::vector<Outcome> outcomes;
  outcomes.reserve(trainers_.size() + 1);
  for (const auto& trainer : trainers_) outcomes.push_back(trainer->finish());
  outcomes.push_back({{}, {}, recorded_});
  return outcomes;
}

void expect_as_plain(const MakeProgram& make, const Expected& expected) {
  for (const int ranks : {1, 2, 3}) {
    Job job{.ranks = ranks, .steps = expected.steps};
    const Result plain = expected.plain ? run_program(job, make, nullptr) : Result{};
    expect_change(plain);
    for (const Precision precision : kPrecisions) {
      job.plan = job.plan.precision(precision);
      expect_equal_plans(job, plain, make, expected);
    }
  }
}

void expect_same_on_one_rank(const MakeProgram& make, const Expected& expected) {
  for (const Precision precision : kPrecisions)
    for (const int micro_batches : {1, 2}) {
      const auto plan_of = [&](const Plan& plan, int accumulate) {
        return plan.precision(precision).accumulate(accumulate).reproducible(true);
      };
      Job job{.plan = plan_of(Plan::ddp(), 2 * micro_batches), .ranks = 1, .steps = expected.steps};
      in_case(job, [&] {
        const std::vector<Outcome> alone = run_on_ranks(job, make);
        for (const Plan& plan : all_plans()) {
          Job pair = job;
          pair.plan = plan_of(plan, micro_batches);
          pair.ranks = 2;
          in_case(pair, [&] { expect_same(alone, run_on_ranks(pair, make)); });
        }
      });
    }
}

}  // namespace zero::test
