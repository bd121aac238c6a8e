// Parameters that are at rest where nobody has a pointer to them: read ahead of their use and written by updates,
// scopes and loading, with the bits of memory.
#include <torch/torch.h>

#include <filesystem>
#include <optional>

#include "late_stores.h"
#include "states.h"
#include "zero/error.h"

namespace zero::test::paged_test {

const LateStates kAll{State::parameter, State::gradient, State::optimizer};

Plan offloaded(Plan plan, const LateStates& states = kAll) {
  for (const State state : states) plan = plan.offload(state, Tier::disk);
  return plan;
}

Options with_folder(Options options = {}) {
  options.disk.directories = {std::filesystem::temp_directory_path()};  // for plans that ask for one
  return options;
}

// The outcome of a course under a plan in memory, and elsewhere, is the same.
template <class Model, class Loop>
void expect_alike(Job job, const Course<Model>& course, const Loop& loop) {
  job.options = with_folder(job.options);
  const Outcome in_memory = train_by(job, course, loop);
  const auto watch = std::make_shared<LateWatch>();
  job.plan = offloaded(job.plan);
  EXPECT_EQ(difference(in_memory, train_by(job, in_late_stores(watch, course, kAll), loop)), "")
      << describe(job) << " " << name(job.plan.precision());
  expect_no_fault(watch);
}

std::vector<Job> jobs() {
  std::vector<Job> jobs;
  for (const Precision precision : {Precision::fp32, Precision::bf16, Precision::bf16_kahan})
    for (const auto& [plan, ranks] : {std::pair(Plan::zero3(), 2), std::pair(Plan::ddp(), 1)})
      jobs.push_back({.plan = plan.precision(precision), .ranks = ranks, .options = {.seed = 3}});
  return jobs;
}

// What an engine leaves behind without release() is told of.
TEST(PagedUnits, EndWithTheirEngine) {
  const auto watch = std::make_shared<LateWatch>();
  const Late late(watch, kAll);
  Lm model;
  initialise(model, kSeed);
  {
    Engine engine(model, World(), offloaded(Plan::ddp()), AdamW{}, with_folder());
    train_step(model, engine);
  }
  expect_no_fault(watch);
  EXPECT_TRUE(says(thrown_by([&] { static_cast<void>(model.loss(0)); }), {"on another tier has ended", "release()"}));
}

// Rank and micro-batch choose which unit is used: the others serve what they have of it.
struct Experts : torch::nn::Module {
  at::Tensor loss(std::int64_t index) {
    const at::Tensor x = first(numbers(index, {4, 5}));
    return all[static_cast<std::size_t>(index) % all->size()]->as<torch::nn::Linear>()->forward(x).square().mean();
  }
  torch::nn::Linear first = register_module("first", torch::nn::Linear(5, 5));
  torch::nn::ModuleList all = register_module(
      "all", torch::nn::ModuleList(torch::nn::Linear(5, 5), torch::nn::Linear(5, 5), torch::nn::Linear(5, 5)));
};

TEST(PagedUnits, OfWhichRanksUseOthersAreServed) {
  for (const int ranks : {2, 3})
    for (const int accumulate : {1, 2})
      expect_alike({.plan = Plan::zero3().accumulate(accumulate), .ranks = ranks}, Course<Experts>{},
                   [](Experts& model, Engine& engine, Outcome& run, int) {
                     for (int step = 0; step < 4; ++step) run.record(train_step(model, engine));
                   });
}

struct Limited : torch::nn::Module {
  at::Tensor loss(std::int64_t index) { return out(table(tokens(index, {4, 5}, 11)).sum(1)).square().mean(); }
  torch::nn::Embedding table =
      register_module("table", torch::nn::Embedding(torch::nn::EmbeddingOptions(11, 6).max_norm(0.35)));
  torch::nn::Linear out = register_module("out", torch::nn::Linear(6, 3));
};

TEST(PagedUnits, HaveRowsOfALargestNorm) {
  for (const Job& job : jobs())
    expect_alike(job, Course<Limited>{}, [](Limited& model, Engine& engine, Outcome& run, int) {
      for (int step = 0; step < 3; ++step) run.record(train_step(model, engine));
    });
}

TEST(PagedUnits, AreToldAndLoadedAsInMemory) {
  for (Job job : jobs()) {
    job.options = with_folder(job.options);
    const auto run_from = [&](const Plan& plan, const States& from, const Course<StatesModelImpl>& course) {
      Job each = job;
      each.plan = plan;
      const States state = std::make_shared<MemoryState>();
      const Outcome end = train_by(each, course, [&](StatesModelImpl& model, Engine& engine, Outcome& run, int) {
        if (from) engine.load_state(*from);
        for (int step = 0; step < 2; ++step) run.record(train_step(model, engine));
        state->add(engine.state());
        run.record(train_step(model, engine));
      });
      EXPECT_EQ(state->faults(), "");
      return std::pair(state, end);
    };
    const auto watch = std::make_shared<LateWatch>();
    const Course<StatesModelImpl> late = in_late_stores<StatesModelImpl>(watch, {}, kAll);
    const Plan there = offloaded(job.plan);
    const auto [state, end] = run_from(job.plan, {}, {});
    const auto [late_state, late_end] = run_from(there, {}, late);
    EXPECT_EQ(difference(*state, *late_state), "");
    EXPECT_EQ(difference(end, late_end), "");
    EXPECT_EQ(difference(run_from(job.plan, late_state, {}).second, run_from(there, state, late).second), "");
    expect_no_fault(watch);
  }
}

// Says what is under way of its parameters' store when a layer has run.
struct Chain : torch::nn::Module {
  explicit Chain(Watch watching) : watch(std::move(watching)) {
    for (int i = 0; i < 6; ++i) all->push_back(torch::nn::Linear(5, 5));
  }
  at::Tensor loss(std::int64_t index) {
    at::Tensor x = numbers(index, {4, 5});
    under_way.clear();
    for (const auto& each : *all) {
      x = each->as<torch::nn::Linear>()->forward(x);
      under_way.push_back(watch->under_way);
    }
    return x.square().mean();
  }
  Watch watch;
  std::vector<std::int64_t> under_way;
  torch::nn::ModuleList all = register_module("all", torch::nn::ModuleList());
};

void in_a_chain(const std::function<void(Chain& model, Engine& engine)>& loop) {
  const auto watch = std::make_shared<LateWatch>();
  const Job job{.plan = Plan::ddp().offload(State::parameter, Tier::disk), .ranks = 1, .options = with_folder()};
  const Course<Chain> course{.make = [&] { return std::make_shared<Chain>(watch); }};
  on_ranks<Chain>(job, in_late_stores(watch, course, {State::parameter}),
                  [&](Chain& model, Engine& engine, int) { loop(model, engine); });
  expect_no_fault(watch);
}

// Another unit is read while one is used: reads are under way when an operator runs.
TEST(PagedUnits, AreReadTwoUnitsAhead) {
  in_a_chain([](Chain& model, Engine& engine) {
    for (int step = 0; step < 2; ++step) train_step(model, engine);
    // The last two of a forward are followed by those of the backward, which are there.
    EXPECT_EQ(model.under_way, (std::vector<std::int64_t>{2, 2, 2, 2, 1, 0}));
  });
}

// Foreseen from the forward of a micro-batch, later from the evaluation before, in which nothing is read that is not
// used if it is as long.
TEST(PagedUnits, AreReadTwoUnitsAheadInEvaluations) {
  using Seen = std::vector<std::vector<std::int64_t>>;
  const std::vector<std::int64_t> late(6, 0), ahead{2, 2, 2, 2, 1, 0}, followed(6, 2);
  const auto evaluate = [](Chain& model, int forwards) {
    const torch::NoGradGuard no_grad;
    const std::int64_t before = model.watch->operations;
    Seen seen;
    for (int i = 0; i < forwards; ++i) {
      model.loss(i).item<double>();
      seen.push_back(model.under_way);
    }
    EXPECT_EQ(model.watch->operations - before, 6 * forwards);
    return seen;
  };
  in_a_chain([&](Chain& model, Engine& engine) {
    EXPECT_EQ(evaluate(model, 2), (Seen{late, ahead})) << "nothing was seen before";
    train_step(model, engine);
    EXPECT_EQ(evaluate(model, 2), (Seen{followed, ahead}));
  });
  in_a_chain([&](Chain& model, Engine& engine) {
    train_step(model, engine);
    EXPECT_EQ(evaluate(model, 2), (Seen{ahead, ahead})) << "a forward was seen";
    train_step(model, engine);
    EXPECT_EQ(evaluate(model, 2), (Seen{followed, ahead}));
    train_step(model, engine);
    EXPECT_EQ(model.under_way, ahead);
  });
}

// Engines of one rank on this thread, whose parameters' store fails.
class FailingParameters : public testing::Test {
 protected:
  void build(const Plan& plan = Plan::ddp()) {
    engine_.reset();
    model_ = std::make_shared<Lm>();
    initialise(*model_, kSeed);
    engine_.emplace(*model_, World(), plan.offload(State::parameter, Tier::disk), AdamW{}, with_folder());
  }
  std::string thrown_when(int operation, const std::function<void()>& call) {
    watch_->fails_at = operation;
    std::string text = thrown_by(call);
    watch_->fails_at = -1;
    EXPECT_EQ(watch_->faults, "");
    return text;
  }

  Watch watch_ = std::make_shared<LateWatch>();
  Late late_{watch_, {State::parameter}};
  std::shared_ptr<Lm> model_;
  std::optional<Engine> engine_;
};

TEST_F(FailingParameters, AreToldOfWhereverTheyAreUsed) {
  std::vector<std::string> seen;
  for (int operation = 0;; operation += 5) {
    build();
    train_step(*model_, *engine_);
    const std::string text = thrown_when(operation, [&] { train_step(*model_, *engine_); });
    if (text.empty()) break;
    const bool in_update = text.find("the update of unit '") != std::string::npos;
    EXPECT_TRUE(says(text, {"rank 0: ", "the late store failed to "}));
    EXPECT_TRUE(in_update || says(text, {"the parameters of unit '"}));
    if (in_update)
      EXPECT_TRUE(says(thrown_by([&] { engine_->discard(); }), {"halfway", "start again"}));
    else
      train_step(*model_, *engine_);  // a read that failed is tried again
    seen.emplace_back(in_update ? "update" : "read");
  }
  EXPECT_GT(std::ranges::count(seen, "update"), 5);
  EXPECT_GT(std::ranges::count(seen, "read"), 1);
}

TEST_F(FailingParameters, EndAnEngineWhoseScopeTheyFail) {
  build();
  const auto write = [&] {
    const Gather scope({model_->embed->weight});
    const torch::NoGradGuard no_grad;
    model_->embed->weight.add_(1);
  };
  EXPECT_TRUE(says(thrown_when(0, write), {"rank 0: the parameters of unit '", "failed to read"}));
  EXPECT_TRUE(says(thrown_when(1, write), {"rank 0: what was written of unit '", "failed to write"}));
  EXPECT_TRUE(says(thrown_by([&] { engine_->discard(); }), {"halfway"}));
}

TEST_F(FailingParameters, LeaveTheModelWhereAnEngineIsBuilt) {
  EXPECT_TRUE(says(thrown_when(0, [&] { build(); }), {"rank 0: the parameters of unit '", "failed to write"}));
  build();
  train_step(*model_, *engine_);
}

}  // namespace zero::test::paged_test
