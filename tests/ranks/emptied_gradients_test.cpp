// What zero_grad() empties is so on every rank, whoever had gradients, and the step's numbers go on from there.
#include <filesystem>
#include <mutex>
#include <set>
#include <utility>

#include "familiar.h"
#include "folder.h"
#include "late_stores.h"
#include "zero/error.h"

namespace zero::test::emptied_gradients_test {

Job job_of(const Plan& plan, int accumulate) {
  Job job = kJob;
  const bool hybrid = plan.label().starts_with("hybrid");
  job.ranks = hybrid ? 4 : 2;
  job.shard = hybrid ? 2 : 0;
  job.steps = 2;
  job.plan = plan.accumulate(accumulate).reproducible(accumulate == 2);
  return job;
}

// Backwards of ranks of which only some have data, all dropped before each step.
Outcome train_with_dropped(const Job& job, int dropped, const Course<Net>& course = {}) {
  return train_by<Net>(job, course, [&](Net& net, Engine& engine, Outcome& run, int rank) {
    for (int step = 0; step < job.steps; ++step) {
      for (int i = 0; i < dropped; ++i) engine.backward((rank + i) % 2 == 0 ? net.loss(900 + i) * 100 : no_data());
      step == 0 ? engine.optimizer().zero_grad() : net.zero_grad(false);
      for (int micro = 0; micro < job.plan.accumulate(); ++micro) net.loss(engine.micro_batch()).backward();
      run.record(engine.step());
    }
  });
}

class EmptiedGradients : public testing::TestWithParam<std::tuple<std::size_t, int>> {};

TEST_P(EmptiedGradients, AreSoOnRanksWithoutData) {
  const auto& [which, accumulate] = GetParam();
  const Job job = job_of(plans_of_meshes()[which], accumulate);
  const Outcome expected = train_with_dropped(job, 0);
  for (int dropped = 1; dropped <= (accumulate == 1 ? 3 : accumulate); ++dropped)
    EXPECT_EQ(difference(expected, train_with_dropped(job, dropped)), "") << dropped;
}

std::string title_of(const testing::TestParamInfo<std::tuple<std::size_t, int>>& tested) {
  return in_title(plans_of_meshes()[std::get<0>(tested.param)].label()) + "Of" +
         std::to_string(std::get<1>(tested.param));
}
INSTANTIATE_TEST_SUITE_P(All, EmptiedGradients,
                         testing::Combine(testing::Range<std::size_t>(0, plans_of_meshes().size()),
                                          testing::Values(1, 2, 3)),
                         title_of);

TEST(EmptiedGradients, InStoresOfAnotherTier) {
  for (const Plan& plan : {Plan::zero1(), Plan::zero2(), Plan::zero3()}) {
    const Job job = job_of(plan, 2);
    const auto watch = std::make_shared<LateWatch>();
    const auto late = [&] { return in_late_stores(watch, Course<Net>{}, {State::gradient}); };
    EXPECT_EQ(difference(train_with_dropped(job, 0), train_with_dropped(job, 1, late())), "") << plan.label();
    expect_no_fault(watch);
  }
}

// What the program has kept of them stands for values that are gone.
TEST(EmptiedGradients, AreNotPutBack) {
  for (const Plan& plan : all_plans()) {
    Job job = kJob;
    job.plan = plan;
    on_ranks<Net>(job, {}, [](Net& net, Engine& engine, int) {
      at::Tensor& shown = net.left->weight.mutable_grad();
      net.loss(0).backward();
      const at::Tensor before = shown;
      net.zero_grad();
      net.loss(1).backward();
      const at::Tensor now = std::exchange(shown, before);
      EXPECT_TRUE(says(thrown_by([&] { engine.step(); }), {"'left.weight'", "had emptied"}));
      shown = now;
      EXPECT_TRUE(engine.step().applied);
      shown = now;
      EXPECT_TRUE(says(thrown_by([&] { net.loss(2).backward(); }), {"'left.weight'", "had emptied"}));
    });
  }
}

// Those of a layer that only some ranks' losses had reached: as if none had.
TEST(EmptiedGradients, OfAPart) {
  for (const Plan& plan : plans_of_meshes())
    for (const int accumulate : {1, 2}) {
      const Job job = job_of(plan, accumulate);
      // Whether the first backward reaches `right`, and its gradient is emptied.
      const auto by = [&](const std::function<bool(int rank)>& reaches, bool empties) {
        return train_by<Net>(job, {}, [&](Net& net, Engine& engine, Outcome& run, int rank) {
          net.eval();
          const auto all = [&] { return net.loss(engine.micro_batch()); };
          const auto part = [&] { return net.left(net.body(numbers(engine.micro_batch(), {4, 7}))).square().mean(); };
          for (int step = 0; step < job.steps; ++step) {
            at::Tensor loss = part();
            if (reaches(rank)) loss = loss + net.right(numbers(step, {5, 3})).square().sum() * 50;
            engine.backward(loss);
            if (empties) net.right->zero_grad();
            engine.backward(all());
            run.record(engine.step());
          }
        });
      };
      Outcome expected = by([](int) { return false; }, false);
      expected.losses.clear();
      for (const auto& reaches : std::vector<std::function<bool(int)>>{
               [](int rank) { return rank == 0; }, [](int rank) { return rank == 1; }, [](int) { return true; }}) {
        Outcome run = by(reaches, true);
        run.losses.clear();
        EXPECT_EQ(difference(expected, run), "") << describe(job);
      }
    }
}

struct Unused : Net {
  Linear unused = register_module("unused", Linear(3, 3));
};

// Where all that has come is emptied the step begins anew, however much else is trained.
TEST(EmptiedGradients, OfAllThatWasReached) {
  for (const int ranks : {1, 2, 3})
    for (const Plan& plan : all_plans()) {
      Job job = kJob;
      job.ranks = ranks;
      job.plan = plan;
      const auto by = [&](bool drops) {
        return train_by<Unused>(job, {}, [&](Unused& net, Engine& engine, Outcome& run, int rank) {
          for (int step = 0; step < job.steps; ++step) {
            if (drops) {
              engine.backward(rank == 0 ? net.loss(77) : no_data());
              for (auto* const each : {&net.body, &net.left, &net.right}) (*each)->zero_grad();
            }
            net.loss(engine.micro_batch()).backward();
            run.record(engine.step());
          }
        });
      };
      EXPECT_EQ(difference(by(false), by(true)), "") << describe(job);
    }
}

// All that was reached.
void empty_all(Unused& net, Engine& engine, int how) {
  switch (how) {
    case 0: return net.zero_grad();
    case 1: return engine.zero_grad(/*set_to_none=*/false);
    default:
      for (auto* const each : {&net.body, &net.left, &net.right}) (*each)->zero_grad();
  }
}

// Between two steps, for whatever may only be done there.
TEST(EmptiedGradients, AreNoStepToSavesAndLoads) {
  for (const int ranks : {1, 2})
    for (const Plan& plan : all_plans())
      for (const int accumulate : {1, 2}) {
        const Folder folder;
        Job job = kJob;
        job.ranks = ranks;
        job.plan = plan.accumulate(accumulate);
        const auto by = [&](bool drops) {
          return train_by<Unused>(job, {}, [&](Unused& net, Engine& engine, Outcome& run, int rank) {
            for (int step = 0; step < job.steps; ++step) {
              const auto drop = [&] {
                if (!drops) return;
                engine.backward(rank == 0 ? net.loss(77) : no_data());
                empty_all(net, engine, step % 3);
              };
              drop();
              static_cast<void>(engine.state());
              drop();
              engine.save(folder.path(), {.replace = true});
              drop();
              engine.load(folder.path());
              run.record(train_step(net, engine));
            }
          });
        };
        EXPECT_EQ(difference(by(false), by(true)), "") << describe(job);
      }
}

// A save that is refused for those that are left takes nothing from what zero_grad() does behind it.
TEST(EmptiedGradients, OfAPartAreStillOfAStep) {
  const Folder folder;
  for (const Plan& plan : all_plans()) {
    Job job = kJob;
    job.plan = plan;
    on_ranks<Net>(job, {}, [&](Net& net, Engine& engine, int) {
      engine.backward(net.loss(1));
      net.left->zero_grad();
      for (int i = 0; i < 2; ++i) {
        EXPECT_TRUE(says(thrown_by([&] { engine.save(folder.path()); }), {"in the middle of a step"}));
        EXPECT_TRUE(says(thrown_by([&] { static_cast<void>(engine.state()); }), {"in the middle of a step"}));
      }
      net.zero_grad();
      EXPECT_EQ(thrown_by([&] { engine.save(folder.path(), {.replace = true}); }), "") << plan.label();
    });
  }
}

// Those of a step whose parameters are not there yet.
TEST(EmptiedGradients, LeaveTheLatestParametersToSee) {
  for (const int ranks : {1, 2})
    for (const Plan& plan : all_plans())
      for (const int seen : {0, 1, 2, 3}) {
        Job job = kJob;
        job.ranks = ranks;
        job.options.disk = {.directories = {std::filesystem::temp_directory_path()}, .block = 4096, .depth = 2};
        job.plan = plan.offload(State::optimizer, Tier::disk).delay_update();
        const auto by = [&](bool drops) {
          return train_by<Unused>(job, {}, [&](Unused& net, Engine& engine, Outcome& run, int rank) {
            for (int step = 0; step < job.steps; ++step) {
              run.record(train_step(net, engine));
              if (drops) {
                engine.backward(rank == 0 ? net.loss(77) : no_data());
                empty_all(net, engine, step % 3);
              }
              if (seen == 0) run.parameters["main"] = engine.main_parameter(net.body->weight);
              if (seen == 1) {
                const Gather whole(net.parameters());
                run.parameters["whole"] = net.body->weight.detach().clone();
              }
              if (seen == 2) {
                const at::NoGradGuard no_grad;
                run.parameters["by an operator"] = net.body->weight * 1;
              }
              if (seen == 3) static_cast<void>(engine.state());
            }
          });
        };
        EXPECT_EQ(difference(by(false), by(true)), "") << describe(job) << " " << seen;
      }
}

// By some ranks alone.
TEST(EmptiedGradients, DifferentlyOnEachRankAreAnError) {
  for (const Plan& plan : all_plans())
    for (const bool part : {false, true}) {
      std::string fault;
      try {
        Job job = kJob;
        job.plan = plan;
        on_ranks<Net>(job, {}, [&](Net& net, Engine& engine, int rank) {
          net.loss(rank).backward();
          if (rank == 0) part ? net.left->zero_grad() : net.zero_grad();
          net.loss(rank).backward();
          engine.step();
        });
      } catch (const RankError& error) {
        fault = error.what();
      }
      EXPECT_TRUE(says(fault, {"different operations", "zero_grad()"})) << plan.label() << part;
    }
}

// n: a micro-batch of the number that is next; z: zero_grad(); t: the number is told; f: a forward, which
// draws by it, and b its backward.
struct Play {
  Net& net;
  Engine& engine;
  std::vector<std::int64_t> used;  // since the latest zero_grad()
  at::Tensor open;
  std::int64_t number = -1;

  void forward() {
    number = engine.micro_batch();
    open = net.loss(number);
  }
  void backward() {
    open.backward();
    used.push_back(number);
  }
  void act(char event) {
    switch (event) {
      case 'n': forward(); [[fallthrough]];
      case 'b': backward(); break;
      case 'f': forward(); break;
      case 't': static_cast<void>(engine.micro_batch()); break;
      default: net.zero_grad(); used.clear();
    }
  }
};

TEST(MicroBatchNumbers, AreEachUsedOnceInAStep) {
  for (const Plan& plan : all_plans())
    for (const int ranks : {1, 2})
      for (const char* const events :
           {"nnn", "nznnn", "nnznnn", "nznznnn", "nfzbnn", "nnfzbnn", "ntznnn", "nnnznnn", "nnnfzbnn", "ntztnnn"}) {
        std::mutex mutex;
        std::multiset<std::int64_t> used;
        Job job = kJob;
        job.ranks = ranks;
        job.plan = plan.accumulate(3);
        on_ranks<Net>(job, {}, [&](Net& net, Engine& engine, int) {
          for (int step = 0; step < 2; ++step) {
            Play play{net, engine, {}, {}};
            for (const char* event = step == 0 ? events : "nnn"; *event != '\0'; ++event) play.act(*event);
            EXPECT_TRUE(engine.step().applied);
            const std::lock_guard lock(mutex);
            used.insert(play.used.begin(), play.used.end());
          }
        });
        std::multiset<std::int64_t> all;
        for (int i = 0; i < 2 * 3 * ranks; ++i) all.insert(i);
        EXPECT_EQ(used, all) << plan.label() << " " << ranks << " " << events;
      }
}

// Of a parameter, without a forward: where one rank alone looks, all go on with the same.
TEST(MicroBatchNumbers, AreNotGivenToALook) {
  for (const Plan& plan : all_plans()) {
    Job job = kJob;
    job.plan = plan.accumulate(3);
    on_ranks<Net>(job, {}, [&](Net& net, Engine& engine, int rank) {
      const std::int64_t first = engine.micro_batch();
      net.loss(first).backward();
      if (rank == 0) static_cast<void>((net.body->weight * 2).sum().item<double>());
      net.zero_grad();
      EXPECT_EQ(engine.micro_batch(), first) << plan.label();
      EXPECT_TRUE(train_step(net, engine).applied);
    });
  }
}

}  // namespace zero::test::emptied_gradients_test
