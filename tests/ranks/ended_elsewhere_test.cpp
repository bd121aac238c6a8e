// Engines that end where they were not built: on another thread, and in a process that was forked.
#include <sys/wait.h>
#include <torch/torch.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <future>
#include <memory>
#include <optional>
#include <thread>

#include "familiar.h"
#include "folder.h"
#include "memory/torch/arena_allocator.h"
#include "zero/error.h"

namespace zero::test::ended_elsewhere_test {

Net net_here() {
  Net net;
  initialise(net, kSeed);
  net.to(device_of_rank());
  return net;
}

// That it comes to its end there, where LibTorch has none of its threads either.
void expect_of_a_fork(const std::function<void()>& call) {
  constexpr int kEnded = 7;
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(120);
    at::set_num_threads(1);
    call();
    ::_exit(kEnded);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == kEnded) << status;
}

// Built and used on a thread that has ended, with an evaluation left open.
std::unique_ptr<Engine> of_a_thread_that_ended(Net& net, const World& world, const Job& job) {
  std::unique_ptr<Engine> engine;
  on_another_thread([&] {
    engine = std::make_unique<Engine>(net, world, job.plan, job.optimizer);
    net.loss(0).backward();
    engine->step();
    const torch::NoGradGuard no_grad;
    net.loss(0);
  });
  return engine;
}

TEST(EndedElsewhere, LeavesTheEnginesOfBothThreadsTheirBits) {
  for (const Precision precision : {Precision::fp32, Precision::bf16}) {
    Job base = kJob;
    base.plan = Plan::ddp().precision(precision);
    under_every_plan(base, [](const Job& job) {
      const auto train = [&](const World& world, Outcome& run) {
        Net net = net_here();
        Engine engine(net, world, job.plan, job.optimizer, {.seed = 3});
        for (int step = 0; step < job.steps; ++step) {
          net.loss(engine.micro_batch()).backward();
          run.record(engine.step());
        }
      };
      run_ranks(job.ranks, [&](const World& world) {
        Outcome expected, after, there;
        train(world, expected);
        Net first = net_here();
        of_a_thread_that_ended(first, world, job).reset();
        train(world, after);
        EXPECT_EQ(difference(expected, after), "");
        // The other way round: the thread that built it goes on.
        Net second = net_here();
        auto engine = std::make_unique<Engine>(second, world, job.plan, job.optimizer);
        second.loss(0).backward();
        on_another_thread([&] { engine.reset(); });
        train(world, there);
        EXPECT_EQ(difference(expected, there), "");
      });
    });
  }
}

// Nothing hears of it any more.
TEST(EndedElsewhere, LeavesBackwardsWithoutAnEngineAlone) {
  under_every_plan(kJob, [](const Job& job) {
    run_ranks(job.ranks, [&](const World& world) {
      for (const bool releases : {false, true}) {
        Net net = net_here();
        auto engine = std::make_unique<Engine>(net, world, job.plan, job.optimizer);
        net.loss(0).backward();
        engine->step();
        on_another_thread([&] {
          if (releases) engine->release();
          engine.reset();
        });
        torch::nn::Linear plain(3, 2);
        plain->to(device_of_rank());
        plain->forward(torch::ones({4, 3}, device_of_rank())).sum().backward();
        EXPECT_TRUE(plain->weight.grad().equal(torch::full({2, 3}, 4.0, device_of_rank())));
        if (releases) net.loss(0).backward();
      }
    });
  });
}

TEST(EndedElsewhere, LetsNormalisationOverRanksEnd) {
  run_ranks(2, [](const World& world) {
    torch::nn::BatchNorm1d norm(3);
    norm->to(device_of_rank());
    const at::Tensor x = numbers(world.rank(), {4, 3});
    const at::Tensor alone = norm(x).detach();
    std::optional<SyncBatchNorm> together(sync_batch_norm(*norm, world));
    EXPECT_FALSE(alone.equal(norm(x).detach()));
    world.communicator().barrier().wait();
    on_another_thread([&] { together.reset(); });
    EXPECT_TRUE(alone.equal(norm(x).detach()));
  });
}

// The child has none of the threads that would be waited for, and its end is not this process's.
TEST(EndedElsewhere, InAForkedProcessIsLetGoOf) {
  under_every_plan(kJob, [](const Job& job) {
    const Outcome expected = train<Net>(job);
    const Outcome run = train_by<Net>(job, {}, [&](Net& net, Engine& given, Outcome& outcome, int) {
      auto engine = std::make_unique<Engine>(std::move(given));
      for (int step = 0; step < job.steps; ++step) {
        net.loss(engine->micro_batch()).backward();
        outcome.record(engine->step());
        if (step != 1) continue;
        expect_of_a_fork([&] { engine.reset(); });
      }
      given = std::move(*engine);
    });
    EXPECT_EQ(difference(expected, run), "");
  });
}

// Whatever this process's other threads were about.
TEST(EndedElsewhere, AForkedProcessHasItsMemory) {
  constexpr std::int64_t kLarge = 1 << 20;
  use_arena();
  std::atomic<bool> done = false;
  std::thread other([&] {
    while (!done) torch::empty({kLarge});
  });
  for (int i = 0; i < 200; ++i) {
    expect_of_a_fork([] { torch::empty({kLarge}); });
  }
  done = true;
  other.join();
}

// What a call throws in a forked process says what is the matter.
void expect_told_in_a_fork(const std::function<void()>& call) {
  expect_of_a_fork([&] {
    const std::string told = thrown_by(call);
    if (told.find("in a process that was forked: it has none of the threads that would do it") != std::string::npos)
      return;
    std::fprintf(stderr, "told in the fork: '%s'\n", told.c_str());
    ::_exit(1);
  });
}

TEST(Forks, AreToldAtOnceWhatTheyCannotHave) {
  under_every_plan(kJob, [](const Job& job) {
    on_each_rank(
        job, [] { return std::make_shared<Net>(); },
        [&](torch::nn::Module& module, Engine& engine, int) {
          Net& net = static_cast<Net&>(module);
          engine.backward(net.loss(0));
          engine.step();
          engine.traffic();  // nothing is on its way
          const auto evaluate = [&] {
            const torch::NoGradGuard no_grad;
            net.loss(0);
          };
          if (engine.plan()[State::parameter].rest.shard == Placement::sharded && engine.memory() != Memory::common)
            expect_told_in_a_fork(evaluate);
          else
            expect_of_a_fork(evaluate);
          expect_told_in_a_fork([&] {
            engine.backward(net.loss(1));
            engine.step();
          });
          engine.backward(net.loss(1));
          engine.step();
        });
  });
}

// An optimizer that a rank's step can be held up in: what it updates is on its way to the others so long.
struct HeldUp : torch::optim::SGD {
  HeldUp(std::vector<at::Tensor> parameters, const std::function<void()>& before)
      : SGD(std::move(parameters), torch::optim::SGDOptions(0.1)), before_(before) {}
  at::Tensor step(LossClosure closure = nullptr) override {
    if (before_) before_();
    return SGD::step(std::move(closure));
  }
  const std::function<void()>& before_;
};

TEST(Forks, AreToldAtOnceThatParametersAreOnTheirWay) {
  for (const Plan& plan : {Plan::zero1(), Plan::zero2()}) {
    std::promise<void> forked;
    const std::shared_future<void> there = forked.get_future().share();
    run_ranks(2, [&](const World& world) {
      Net net = net_here();
      std::function<void()> before;
      Engine engine(net, world, plan, TorchOptimizer{.make = [&](const std::vector<at::Tensor>& parameters) {
                      return std::make_unique<HeldUp>(parameters, before);
                    }});
      if (world.rank() == 1) before = [there] { there.wait(); };
      engine.backward(net.loss(0));
      engine.step();
      if (world.rank() == 0) {
        expect_told_in_a_fork([&] {
          const torch::NoGradGuard no_grad;
          net.loss(0);
        });
        forked.set_value();
      }
      engine.backward(net.loss(1));
      EXPECT_TRUE(engine.step().applied);
    });
  }
}

TEST(Forks, AreToldAtOnceThatTheyHaveNoDisk) {
  const Folder folder;
  Net net = net_here();
  Engine engine(net, World(), Plan::ddp().offload(State::optimizer, Tier::disk), AdamW{},
                {.disk = {.directories = {folder.path()}}});
  const auto step = [&] {
    engine.backward(net.loss(engine.micro_batch()));
    engine.step();
  };
  step();
  expect_told_in_a_fork(step);
  step();
}

TEST(Forks, AreToldAtOnceThatTheyAreNoRank) {
  run_ranks(2, [](const World& world) {
    expect_told_in_a_fork([&] { world.communicator().barrier().wait(); });
    expect_told_in_a_fork([&] { world.communicator().split(0, world.rank()); });
    world.communicator().barrier().wait();
  });
}

TEST(EndedElsewhere, InAForkedProcessGroupsAreLetGoOf) {
  run_ranks(2, [](const World& world) {
    auto group = std::make_unique<Communicator>(world.communicator().split(0, world.rank()));
    expect_of_a_fork([&] { group.reset(); });
    group->barrier().wait();
  });
}

}  // namespace zero::test::ended_elsewhere_test
