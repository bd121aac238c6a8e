// Ranks that evaluate more than others, or alone, and what comes behind it.
#include <torch/torch.h>

#include <filesystem>
#include <future>

#include "familiar.h"
#include "zero/collectives.h"
#include "zero/error.h"

namespace zero::test::uneven_evaluation_test {

// Rested for is a hundredth of it.
constexpr std::chrono::seconds kLimit{60};

struct Evaluated {
  std::vector<double> sums;  // of the losses that each rank saw, before and behind the steps
  Outcome run;
};

// The sum of as many losses, of `all` that are computed.
double evaluate(Net& net, std::int64_t batches, std::int64_t all) {
  const torch::NoGradGuard no_grad;
  double sum = 0;
  net.eval();
  for (std::int64_t i = 0; i < all; ++i) {
    const double loss = net.loss(100 + i).item<double>();
    if (i < batches) sum += loss;
  }
  net.train();
  return sum;
}

Plan delayed(const Plan& plan) {
  return plan.offload(State::optimizer, Tier::disk).offload(State::gradient, Tier::disk).delay_update();
}

// Rank r evaluates r batches more than rank 0, then all of them wait for each other where no engine knows of it. Rank 0
// has none, but where the first evaluation is for all ranks. Or, `evenly`, all compute as many.
std::vector<Evaluated> evaluate_and_train(const Job& job, bool evenly = false) {
  const std::int64_t least = job.plan.delays_update() ? 1 : 0;
  std::vector<Evaluated> all(static_cast<std::size_t>(job.ranks));
  run_ranks(
      job.ranks,
      [&](const World& world) {
        Net net;
        initialise(net, kSeed);
        net.to(device_of_rank());
        Evaluated& mine = all[static_cast<std::size_t>(world.rank())];
        Engine engine(net, mesh_of(job, world), job.plan, job.optimizer, job.options);
        const std::int64_t batches = least + world.rank(), computed = evenly ? least + job.ranks : batches;
        for (int step = 0; step < job.steps; ++step) {
          mine.sums.push_back(evaluate(net, batches, computed));
          EXPECT_EQ(sum(world.rank(), world), job.ranks * (job.ranks - 1) / 2);
          mine.run.record(train_step(net, engine));
        }
        mine.sums.push_back(evaluate(net, batches, computed));
        barrier(world);
        mine.run.parameters = parameters_of(net, engine);
        engine.release();
      },
      kLimit, job.ranks_per_host);
  return all;
}

class UnevenEvaluations : public testing::TestWithParam<Job> {};

TEST_P(UnevenEvaluations, AreServedByRanksThatDoSomethingElse) {
  const Job& job = GetParam();
  Job whole = job;
  const bool exact = job.plan[State::parameter].wire == Wire::native;
  if (exact) {
    whole.plan = Plan::ddp().precision(job.plan.precision());
    if (job.plan.delays_update()) whole.plan = delayed(Plan::zero2());
    whole.shard = whole.ranks_per_host = 0;
  }
  const std::vector<Evaluated> expected = evaluate_and_train(whole, !exact), here = evaluate_and_train(job);
  for (std::size_t rank = 0; rank < here.size(); ++rank) {
    EXPECT_EQ(expected[rank].sums, here[rank].sums) << rank;
    EXPECT_EQ(difference(expected[rank].run, here[rank].run), "") << rank;
  }
}

Job of(Plan plan, int ranks, int shard = 0, int ranks_per_host = 0) {
  return {.plan = std::move(plan),
          .ranks = ranks,
          .options = {.seed = 3, .disk = {.directories = {std::filesystem::temp_directory_path()}}},
          .steps = 2,
          .shard = shard,
          .ranks_per_host = ranks_per_host};
}

INSTANTIATE_TEST_SUITE_P(
    All, UnevenEvaluations,
    testing::Values(of(Plan::zero3(), 2), of(Plan::zero3().bf16(), 3), of(Plan::zero2(), 2), of(Plan::zero3(), 4, 0, 2),
                    of(Plan::hybrid(), 4, 2), of(Plan::hybrid(), 4, 2, 2),
                    of(Plan::zero3().offload(State::parameter, Tier::disk), 2), of(delayed(Plan::zero3()), 2),
                    of(Plan::zero3().keep_gathered(KeptCopy::shard), 4, 2, 2),
                    of(Plan::zero3().bf16().keep_gathered(KeptCopy::host), 4, 2, 2),
                    of(Plan::sdp4bit().bf16(), 4, 2, 2), of(Plan::sdp4bit().keep_gathered(KeptCopy::host), 4, 2, 2),
                    of(delayed(Plan::zero3().keep_gathered(KeptCopy::shard)), 4, 2),
                    of(delayed(Plan::zero3().keep_gathered(KeptCopy::host)), 4, 2, 2)),
    [](const testing::TestParamInfo<Job>& tested) {
      const Job& job = tested.param;
      return in_title(job.plan.label()) + in_title(job.ranks, 1, job.plan.precision()) + "InGroupsOf" +
             std::to_string(job.shard) + "OnHostsOf" + std::to_string(job.ranks_per_host);
    });

// Which units a rank has is its own affair: some have none of them when the scope begins, others all, which then end.
TEST(UnevenEvaluations, LeaveScopesAndEndsToAllRanks) {
  for (const bool releases : {false, true})
    run_ranks(
        3,
        [&](const World& world) {
          Net net;
          initialise(net, kSeed);
          const at::Tensor before = net.body->weight.detach().clone();
          Engine engine(net, world, Plan::zero3().resident_budget(std::int64_t{1} << 30), kJob.optimizer);
          train_step(net, engine);
          evaluate(net, world.rank(), world.rank());
          if (releases) return engine.release();
          const auto whole = gather(net.parameters());
          EXPECT_FALSE(before.equal(net.body->weight));
        },
        kLimit);
}

// A forward with gradients is for all ranks, and says so when its time is up.
TEST(UnevenEvaluations, AreNoForwardsWithGradients) {
  std::promise<std::string> told;
  run_ranks(
      2,
      [&](const World& world) {
        Net net;
        Engine engine(net, world, Plan::zero3(), kJob.optimizer);
        if (engine.memory() == Memory::common) return;  // nobody is needed
        if (world.rank() == 1) {
          told.set_value(thrown_by([&] { net.loss(0); }));
        } else {
          EXPECT_TRUE(says(told.get_future().get(),
                           {"rank 1 waited 2000 ms to gather parameters of unit", "no call of the engine's on rank 0",
                            "waits in a collective of its own", "zero::no_data()"}));
        }
      },
      std::chrono::seconds(2));
}

}  // namespace zero::test::uneven_evaluation_test
