// Ranks that have less data than others, or none.
#include <torch/torch.h>

#include "covering.h"
#include "harness.h"
#include "zero/samples.h"

namespace zero::test::uneven_test {

// A sample is a number's row.
struct Rows : torch::nn::Module {
  Rows() : layers(torch::nn::Linear(6, 8), torch::nn::Tanh(), torch::nn::Linear(8, 8), torch::nn::Linear(8, 3)) {
    register_module("layers", layers);
  }
  at::Tensor loss(const std::vector<std::size_t>& samples) {
    std::vector<at::Tensor> rows;
    for (const std::size_t sample : samples) rows.push_back(numbers(static_cast<std::int64_t>(sample), {6}));
    return layers->forward(at::stack(rows)).logsumexp(1).mean();
  }
  at::Tensor loss(std::int64_t index) { return loss(std::vector{static_cast<std::size_t>(index)}); }

  torch::nn::Sequential layers;
};

std::shared_ptr<torch::nn::Module> make_rows() {
  return std::make_shared<Rows>();
}

// Epochs of 17 samples, eight a step: the last step has one, for one of its four micro-batches.
constexpr std::int64_t kSize = 17, kMicroBatches = 4;
constexpr SampleOptions kUneven{.batch = 2, .seed = 3, .last = LastBatch::uneven};

Outcome train_uneven(const Job& job, SampleOptions options = kUneven) {
  return train_by_loop(job, make_rows, [&](torch::nn::Module& module, Engine& engine, Outcome& run, int rank) {
    const MeshShape mesh = job.shard == 0 ? MeshShape(job.ranks) : MeshShape(job.ranks, {.shard = job.shard});
    const Samples samples(kSize, mesh, rank, engine.plan(), options);
    for (int step = 0; step < job.steps; ++step) {
      for (int micro = 0; micro < engine.plan().accumulate(); ++micro) {
        const double weight = samples.weight(engine.micro_batch());
        const auto indices = samples.indices(engine.micro_batch());
        engine.backward(weight == 0 ? no_data() : static_cast<Rows&>(module).loss(indices) * weight);
      }
      run.record(engine.step());
    }
  });
}

Job job_of(const Plan& plan, int ranks, int accumulate) {
  return {.plan = plan.accumulate(accumulate), .ranks = ranks, .options = {.clip = 0.5}, .steps = 6};
}

// The mean over each global batch as one batch of one process.
TEST(UnevenBatches, HaveTheMeanOfTheWholeBatch) {
  const Job one = job_of(Plan::ddp(), 1, 1);
  Rows rows;
  rows.to(device_of_rank());
  initialise(rows, kSeed);
  PlainTrainer trainer(rows, one);
  const Samples whole(kSize, MeshShape(1), 0, one.plan, {.batch = 8, .seed = 3, .last = LastBatch::uneven});
  for (std::int64_t step = 0; step < one.steps; ++step) {
    trainer.backward(rows.loss(whole.indices(step)));
    trainer.step();
  }
  const Outcome expected = trainer.finish();
  EXPECT_EQ(difference(expected, train_uneven(job_of(Plan::zero3(), 4, 1)), 1e-6), "");
  EXPECT_EQ(difference(expected, train_uneven(job_of(Plan::zero1(), 2, 2)), 1e-6), "");
  SampleOptions of_three = kUneven;
  of_three.batch = 4;  // two micro-batches a step
  EXPECT_EQ(difference(expected, train_uneven(job_of(Plan::zero2(), 2, 1), of_three), 1e-6), "");
}

using Split = std::tuple<Precision, Plan, int>;

std::string title_of(const testing::TestParamInfo<Split>& tested) {
  const auto& [precision, plan, ranks] = tested.param;
  return std::to_string(ranks) + "ranks" + in_title(std::string(name(precision))) + in_title(plan.label());
}

// Precision, plan, ranks among which the four micro-batches are split.
class Uneven : public testing::TestWithParam<Split> {};

TEST_P(Uneven, GiveTheSameBitsHoweverTheyAreSplit) {
  const auto& [precision, plan, ranks] = GetParam();
  const auto of = [&](const Plan& each, int n) {
    return train_uneven(job_of(each.precision(precision).reproducible(true), n, static_cast<int>(kMicroBatches) / n));
  };
  EXPECT_EQ(difference(of(Plan::ddp(), 1), of(plan, ranks)), "");
}

INSTANTIATE_TEST_SUITE_P(All, Uneven,
                         testing::ValuesIn(covering(std::vector{Precision::fp32, Precision::bf16}, all_plans(),
                                                    std::vector{1, 2, 4})),
                         title_of);

TEST(UnevenBatches, GiveTheSameBitsUnderEveryPlanOnThreeRanks) {
  const Outcome ddp = train_uneven(job_of(Plan::ddp(), 3, 1));
  under_every_plan(job_of(Plan::ddp(), 3, 1),
                   [&](const Job& job) { EXPECT_EQ(difference(ddp, train_uneven(job)), ""); });
}

TEST(UnevenBatches, GiveTheSameBitsOnMeshes) {
  const Outcome ddp = train_uneven(job_of(Plan::ddp(), 4, 1));
  for (const Plan& plan : plans_of_meshes()) {
    Job job = job_of(plan, 4, 1);
    job.shard = 2;
    EXPECT_EQ(difference(ddp, train_uneven(job)), "") << describe(job);
  }
}

// One rank has data, in each step another one; the others count with nothing. What is multiplied by the number of ranks
// and divided by it has the bits of that rank alone.
class Alone : public testing::TestWithParam<Split> {};

TEST_P(Alone, OneRankWithDataHasTheBitsOfOneRank) {
  const auto& [precision, plan, ranks] = GetParam();
  const auto train_alone = [&](const Job& job) {
    return train_by_loop(job, make_rows, [&](torch::nn::Module& module, Engine& engine, Outcome& run, int rank) {
      for (int step = 0; step < job.steps; ++step) {
        const bool mine = rank == step % job.ranks;
        engine.backward(mine ? static_cast<Rows&>(module).loss(std::int64_t{step}) * job.ranks : no_data());
        run.record(engine.step());
      }
    });
  };
  const Job one = job_of(Plan::ddp().precision(precision), 1, 1);
  EXPECT_EQ(difference(train_alone(one), train_alone(job_of(plan.precision(precision), ranks, 1))), "");
}

INSTANTIATE_TEST_SUITE_P(All, Alone,
                         testing::ValuesIn(covering(std::vector{Precision::fp32, Precision::bf16}, all_plans(),
                                                    std::vector{1, 2, 4})),
                         title_of);

// Nothing is updated, momentum included, as where no parameter got a gradient.
TEST(UnevenBatches, WithoutAnyDataUpdateNothing) {
  for (const Plan& plan : all_plans())
    on_each_rank(job_of(plan, 2, 1), make_rows, [](torch::nn::Module& module, Engine& engine, int) {
      engine.backward(static_cast<Rows&>(module).loss(engine.micro_batch()));
      engine.step();
      const auto before = parameters_of(module, engine);
      engine.backward(no_data());
      const StepReport report = engine.step();
      EXPECT_TRUE(report.applied);
      EXPECT_EQ(report.loss, 0);
      EXPECT_EQ(report.grad_norm, 0);
      for (const auto& [name, value] : parameters_of(module, engine)) EXPECT_TRUE(at::equal(value, before.at(name)));
    });
}

TEST(UnevenBatches, AreTakenWithALossScale) {
  Job job = job_of(Plan::zero2().precision(Precision::fp16), 2, 1);
  job.options.loss_scale = LossScale::fixed(128);
  on_each_rank(job, make_rows, [](torch::nn::Module& module, Engine& engine, int rank) {
    for (int step = 0; step < 3; ++step) {
      engine.backward(rank == 1 ? no_data() : static_cast<Rows&>(module).loss(engine.micro_batch()) * 2);
      const StepReport report = engine.step();
      EXPECT_TRUE(report.applied);
      EXPECT_GT(report.loss, 0);
      EXPECT_LT(report.loss, 5);
    }
  });
}

}  // namespace zero::test::uneven_test
