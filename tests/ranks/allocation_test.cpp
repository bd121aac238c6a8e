// Memory that ends at any point of construction, forward, backward, step and scopes: the engine goes on as if nothing
// had been tried, or says that it cannot.
#include <torch/torch.h>

#include <new>
#include <optional>

#include "harness.h"
#include "lm.h"
#include "memory/torch/arena_allocator.h"
#include "zero/error.h"

namespace zero::test::allocation_test {

// Blocks that this thread still gets; negative: all.
thread_local int left = -1;

void count_down(std::size_t) {
  if (left < 0) return;
  if (left-- == 0) throw std::bad_alloc();
}

// Blocks are counted on the ranks' own threads, which ask for the same ones on every rank.
class Allocations : public testing::Test {
 protected:
  void SetUp() override {
    use_reporting_allocator();
    set_allocation_probe(&count_down);
  }
  void TearDown() override { set_allocation_probe(nullptr); }
};

// True when the call was done with `blocks` blocks; what it throws for want of more is swallowed.
template <class Call>
bool done_with(int blocks, const Call& call) {
  left = blocks;
  try {
    call();
    left = -1;
    return true;
  } catch (const std::exception&) {
    left = -1;
    return false;
  }
}

std::vector<Job> jobs() {
  const auto job = [](const Plan& plan, int ranks) {
    return Job{.plan = plan, .ranks = ranks, .options = {.seed = 3}, .steps = 2};
  };
  return {job(Plan::ddp().bf16(), 1),   job(Plan::ddp().bf16(), 2), job(Plan::zero1(), 2),
          job(Plan::zero2().bf16(), 2), job(Plan::zero3(), 2),      job(Plan::zero3().bf16(), 2)};
}

// The engine of the run, anew where it is broken.
struct Trial {
  Trial(const Job& j, const World& w) : job(j), world(w) { build(); }
  void build() {
    engine.reset();
    model = std::make_shared<Lm>(0.1);
    initialise(*model, kSeed);
    engine.emplace(*model, world, job.plan, job.optimizer, job.options);
  }
  bool broken() {
    const std::string text = thrown_by([&] { engine->discard(); });
    EXPECT_TRUE(text.empty() || says(text, {"halfway"}));
    return !text.empty();
  }
  const Job& job;
  const World& world;
  std::shared_ptr<Lm> model;
  std::optional<Engine> engine;
};

// Trains the job's steps by `train(run)`, which may be disturbed, and expects what an undisturbed run has.
template <class Train>
void expect_undisturbed(const Train& train_disturbed) {
  for (const Job& job : jobs()) {
    SCOPED_TRACE(describe(job));
    const Outcome expected = train<Lm>(job, lm_with_dropout(0.1));
    std::vector<Outcome> runs(static_cast<std::size_t>(job.ranks));
    run_ranks(job.ranks, [&](const World& world) {
      Trial run(job, world);
      train_disturbed(run);
      runs[static_cast<std::size_t>(world.rank())].parameters = parameters_of(*run.model, *run.engine);
    });
    const Outcome end = agreed(runs);
    EXPECT_EQ(difference(Outcome{{}, {}, expected.parameters}, end), "");
  }
}

TEST_F(Allocations, ThatFailInForwardLeaveTheStepToBeTriedAgain) {
  expect_undisturbed([](Trial& run) {
    for (int step = 0; step < run.job.steps; ++step) {
      at::Tensor loss;
      const auto forward = [&] { loss = run.model->loss(run.engine->micro_batch()); };
      for (int blocks = 0; !done_with(blocks, forward); ++blocks) EXPECT_FALSE(run.broken());
      run.engine->backward(loss);
      run.engine->step();
    }
  });
}

TEST_F(Allocations, ThatFailInBackwardLeaveTheStepToBeTriedAgain) {
  expect_undisturbed([](Trial& run) {
    for (int step = 0; step < run.job.steps; ++step) {
      for (int blocks = 0;; ++blocks) {
        const at::Tensor loss = run.model->loss(run.engine->micro_batch());
        if (done_with(blocks, [&] { run.engine->backward(loss); })) break;
        EXPECT_FALSE(run.broken());
      }
      run.engine->step();
    }
  });
}

// Two backwards where one is planned hold sums in more bytes.
TEST_F(Allocations, ThatFailInABackwardBeyondThePlanLeaveTheEngineWhole) {
  expect_undisturbed([](Trial& run) {
    for (int blocks = 0;; ++blocks) {
      run.engine->backward(run.model->loss(0));
      const at::Tensor loss = run.model->loss(1);
      if (done_with(blocks, [&] { run.engine->backward(loss); })) break;
      EXPECT_FALSE(run.broken());
    }
    run.engine->discard();
    for (int step = 0; step < run.job.steps; ++step) train_step(*run.model, *run.engine);
  });
}

TEST_F(Allocations, ThatFailInAStepBreakTheEngineOrLeaveTheStepToBeTriedAgain) {
  expect_undisturbed([](Trial& run) {
    for (int blocks = 0, done = 0; done < run.job.steps;) {
      run.engine->backward(run.model->loss(run.engine->micro_batch()));
      if (done_with(blocks, [&] { EXPECT_TRUE(run.engine->step().applied); })) {
        ++done;
        continue;
      }
      ++blocks;
      if (!run.broken()) continue;
      EXPECT_TRUE(says(thrown_by([&] { run.engine->step(); }), {"halfway"}));
      run.build();
      done = 0;
    }
  });
}

TEST_F(Allocations, ThatFailInAScopeLeaveTheEngineAsItWas) {
  expect_undisturbed([](Trial& run) {
    for (int step = 0; step < run.job.steps; ++step) {
      train_step(*run.model, *run.engine);
      const auto scope = [&] { const Gather whole = gather(run.model->parameters()); };
      for (int blocks = 0; !done_with(blocks, scope); ++blocks) EXPECT_FALSE(run.broken());
      const auto read = [&] { run.engine->main_parameter(run.model->embed->weight); };
      for (int blocks = 0; !done_with(blocks, read); ++blocks) EXPECT_FALSE(run.broken());
    }
  });
}

TEST_F(Allocations, ThatFailInConstructionLeaveTheModuleAsItWas) {
  for (const Job& job : jobs()) {
    SCOPED_TRACE(describe(job));
    run_ranks(job.ranks, [&](const World& world) {
      Lm model;
      initialise(model, kSeed);
      std::vector<at::Tensor> before;
      for (const at::Tensor& parameter : model.parameters()) before.push_back(parameter.detach().clone());
      const void* const place = model.embed->weight.const_data_ptr();
      std::optional<Engine> engine;
      const auto build = [&] { engine.emplace(model, world, job.plan, job.optimizer, job.options); };
      int failures = 0;
      for (; !done_with(failures, build); ++failures) {
        const auto parameters = model.parameters();
        for (std::size_t i = 0; i < before.size(); ++i) EXPECT_TRUE(parameters[i].equal(before[i]));
        EXPECT_EQ(model.embed->weight.const_data_ptr(), place);
      }
      EXPECT_GT(failures, 10);
      EXPECT_TRUE(train_step(model, *engine).applied);
    });
  }
}

TEST_F(Allocations, ThatFailInReleaseSayThatItFailed) {
  for (const Job& job : jobs()) {
    SCOPED_TRACE(describe(job));
    run_ranks(job.ranks, [&](const World& world) {
      for (int blocks = 0;; ++blocks) {
        Trial run(job, world);
        if (done_with(blocks, [&] { run.engine->release(); })) break;
        if (run.broken()) continue;
        EXPECT_TRUE(train_step(*run.model, *run.engine).applied);
      }
    });
  }
}

}  // namespace zero::test::allocation_test
