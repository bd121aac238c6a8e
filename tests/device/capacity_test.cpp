// What a plan is predicted to need is what it needs of a device.
#include <gtest/gtest.h>

#include <atomic>
#include <memory>

#include "device/engines.h"
#include "zero/error.h"

namespace zero::test::capacity_test {

constexpr std::int64_t kPlenty = std::int64_t{1} << 40;

// Of 26 layers, beside which one row of activations is next to nothing.
struct Deep : torch::nn::Module {
  static constexpr int kWidth = 128;
  Deep() {
    for (int i = 0; i < 26; ++i) layers->push_back(torch::nn::Linear(kWidth, kWidth));
  }
  at::Tensor loss(std::int64_t index) {
    return layers->forward(numbers(index, {1, kWidth}).to(parameters().front().device())).square().mean();
  }
  torch::nn::Sequential layers = register_module("layers", torch::nn::Sequential());
};

class Capacity : public ModelsOnDevices, public testing::WithParamInterface<std::tuple<int, Precision, int>> {
 protected:
  // Trains where each device has so much of what the plan is predicted to need.
  static Outcome train_within(const Job& job, double share) {
    for (c10::DeviceIndex device = 0; device < accelerator::kDevices; ++device)
      accelerator::set_capacity(device, kPlenty);
    const Course<Deep> course = course_on<Deep>(accelerator::kType);
    return train_by<Deep>(job, course, [&](Deep& model, Engine& engine, Outcome& run, int) {
      const c10::DeviceIndex device = model.parameters().front().device().index();
      accelerator::set_capacity(
          device, static_cast<std::int64_t>(share * static_cast<double>(engine.estimate().held.peak_held)));
      for (int step = 0; step < job.steps; ++step) run.record(train_step(model, engine));
      accelerator::set_capacity(device, kPlenty);
    });
  }
};

TEST_P(Capacity, IsEnoughAtTheFormulaAndNotBelow) {
  const auto [ranks, precision, accumulate] = GetParam();
  std::optional<Outcome> expected;
  under_every_plan(
      {.plan = Plan::ddp().precision(precision).accumulate(accumulate), .ranks = ranks}, [&](const Job& job) {
        const Outcome run = train_within(job, 1.1);
        EXPECT_EQ(difference(expected.value_or(run), run), "");
        if (!expected) expected = run;
        try {
          train_within(job, 0.97);
          ADD_FAILURE() << "trained within less than it needs";
        } catch (const std::exception& error) {
          EXPECT_TRUE(says(error.what(), {"has no memory left in", "plan " + job.plan.label() + " needs", "bytes"}));
        }
      });
}

std::string title_of_capacity(const testing::TestParamInfo<Capacity::ParamType>& tested) {
  const auto& [ranks, precision, accumulate] = tested.param;
  return in_title(ranks, accumulate, precision);
}

INSTANTIATE_TEST_SUITE_P(All, Capacity,
                         testing::Combine(testing::Values(1, 4), testing::Values(Precision::fp32, Precision::bf16),
                                          testing::Values(1, 2)),
                         title_of_capacity);

// Large enough that the segments of an allocator are small beside it: an embedding and a head larger than the layers
// between them.
struct Wide : torch::nn::Module {
  static constexpr int kWidth = 1536, kWords = 4096;
  Wide() {
    for (int i = 0; i < 9; ++i) layers->push_back(torch::nn::Linear(kWidth, kWidth));
  }
  at::Tensor loss(std::int64_t index) {
    const at::Tensor words = (numbers(index, {8}).abs() * 1000).to(at::kLong).remainder(kWords);
    return head->forward(layers->forward(embedding->forward(words.to(head->weight.device())))).square().mean();
  }
  torch::nn::Embedding embedding = register_module("embedding", torch::nn::Embedding(kWords, kWidth));
  torch::nn::Sequential layers = register_module("layers", torch::nn::Sequential());
  torch::nn::Linear head = register_module("head", torch::nn::Linear(kWidth, kWords));
};

// What comes and goes leaves no holes between what the program allocates.
TEST_F(ModelsOnDevices, ReserveHardlyMoreThanTheyAllocate) {
  for (const Plan& plan : {Plan::zero2(), Plan::zero3()}) {
    SetUp();
    const Course<Wide> course = course_on<Wide>(accelerator::kType);
    const Job job{.plan = Plan(plan).precision(Precision::bf16), .ranks = 2, .steps = 4};
    train_by<Wide>(job, course, [&](Wide& model, Engine& engine, Outcome& run, int) {
      const c10::DeviceIndex device = model.head->weight.device().index();
      for (int step = 0; step < job.steps; ++step) run.record(train_step(model, engine));
      const accelerator::Statistics seen = accelerator::statistics(device);
      EXPECT_LE(static_cast<double>(seen.cached), 1.03 * static_cast<double>(seen.peak)) << plan.label();
    });
  }
}

// By its text: what would have fit.
TEST_F(ModelsOnDevices, SayWhichPlanWouldFit) {
  std::atomic<int> made = 0;
  std::string fault;
  run_ranks(
      2,
      [&](const World& world) {
        Deep model;
        model.to(accelerator::device(static_cast<c10::DeviceIndex>(made++)));
        Engine engine(model, world, Plan::ddp(), AdamW{});
        const c10::DeviceIndex device = model.parameters().front().device().index();
        const at::Tensor loss = model.loss(0);
        accelerator::set_capacity(device, accelerator::statistics(device).allocated);
        const std::string thrown = thrown_by([&] { engine.backward(loss); });
        if (world.rank() == 0) fault = thrown;
      },
      kToDisagree);
  EXPECT_TRUE(says(fault, {"plan ddp needs", "use zero1, which needs", "fits", "discard()"})) << fault;
}

}  // namespace zero::test::capacity_test
