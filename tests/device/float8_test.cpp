// Products in FP8 on the simulated accelerator: the CPU's bits, and by LibTorch's operator for them where a device has
// it.
#include <ATen/record_function.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>

#include "device/engines.h"
#include "folder.h"
#include "zero/error.h"

namespace zero::test::float8_test {

// Of operators that have the CPU's bits on the accelerator. Inputs are of many magnitudes, so that it matters by which
// they are scaled.
struct Products : torch::nn::Module {
  at::Tensor loss(std::int64_t index) {
    const at::Tensor x = (numbers(index, {3, 16, 32}) * std::exp2(index % 7)).to(up->weight.device());
    return head(down(up(x).relu())).to(at::kFloat).square().mean();
  }
  torch::nn::Linear up = register_module("up", torch::nn::Linear(32, 48));
  torch::nn::Linear down = register_module("down", torch::nn::Linear(torch::nn::LinearOptions(48, 16).bias(false)));
  torch::nn::Linear head = register_module("head", torch::nn::Linear(16, 10));
};

class Float8OnADevice : public ModelsOnDevices, public testing::WithParamInterface<std::tuple<int, Scaling>> {
 protected:
  void TearDown() override {
    multiply_float8(false);
    ModelsOnDevices::TearDown();
  }
  static Job job(const Plan& plan, int steps) {
    const auto [ranks, scaling] = GetParam();
    Job job{Plan(plan).precision(Precision::fp8).accumulate(2), ranks};
    job.options = {.clip = 1, .float8 = {.scaling = scaling, .history = 2}};
    job.steps = steps;
    return job;
  }
  static Outcome run(const Plan& plan, at::DeviceType kind) {
    return train<Products>(job(plan, 6), course_on<Products>(kind));
  }
};

TEST_P(Float8OnADevice, HasTheBitsOfTheCpuUnderEveryPlan) {
  const Outcome expected = run(Plan::ddp(), at::kCPU);
  for (const Plan& plan : all_plans())
    EXPECT_EQ(difference(expected, run(plan, accelerator::kType)), "") << plan.label();
}

// The magnitudes that scale the next steps' products are in the checkpoint.
TEST_P(Float8OnADevice, GoesOnWhereTheCpuStoppedAndBack) {
  const Outcome expected = run(Plan::zero3(), at::kCPU);
  const Folder folder;
  Outcome run;
  for (const at::DeviceType kind : {accelerator::kType, at::kCPU, accelerator::kType}) {
    const auto part = [&](Products& model, Engine& engine, Outcome& outcome, int) {
      if (!run.losses.empty()) engine.load(folder.path());
      for (int step = 0; step < 2; ++step) outcome.record(train_step(model, engine));
      engine.save(folder.path());
    };
    Outcome next = train_by(job(Plan::zero3(), 2), course_on<Products>(kind), part);
    run.losses.insert(run.losses.end(), next.losses.begin(), next.losses.end());
    run.norms.insert(run.norms.end(), next.norms.begin(), next.norms.end());
    run.parameters = std::move(next.parameters);
  }
  EXPECT_EQ(difference(expected, run), "");
}

std::atomic<int> scaled_products = 0;
// Of operands or scales off multiples of 16 bytes, from which CUDA does not multiply.
std::atomic<int> unaligned_products = 0;
std::unique_ptr<at::ObserverContext> count(const at::RecordFunction& function) {
  const auto name = function.operator_name();
  if (!name || name->name != "aten::_scaled_mm" || !name->overload_name.empty()) return nullptr;
  ++scaled_products;
  const auto off = [](const c10::IValue& tensor) {
    return reinterpret_cast<std::uintptr_t>(tensor.toTensor().const_data_ptr()) % 16 != 0;
  };
  if (std::ranges::any_of(function.inputs().slice(0, 4), off)) ++unaligned_products;
  return nullptr;
}

// Which here rounds as the CPU does, but for the order of its sums.
TEST_P(Float8OnADevice, IsMultipliedByTheDeviceWhereItCan) {
  const Outcome expected = run(Plan::zero3(), accelerator::kType);
  const auto callback = at::addGlobalCallback(at::RecordFunctionCallback(&count).needsInputs(true));
  multiply_float8(true);
  scaled_products = unaligned_products = 0;
  const Outcome by_device = run(Plan::zero3(), accelerator::kType);
  at::removeCallback(callback);
  // Of a micro-batch two forward and three backward, which are heard of twice: the engine watches and calls them again.
  // The head has no size that the operator takes.
  const int micro_batches = 6 * 2 * std::get<0>(GetParam());
  EXPECT_EQ(scaled_products, (2 + 2 * 3) * micro_batches);
  EXPECT_EQ(unaligned_products, 0);
  EXPECT_EQ(difference(expected, by_device, 1e-2), "");
}

std::string title(const testing::TestParamInfo<std::tuple<int, Scaling>>& tested) {
  const auto& [ranks, scaling] = tested.param;
  return std::to_string(ranks) + (scaling == Scaling::delayed ? "Delayed" : "Current");
}

INSTANTIATE_TEST_SUITE_P(All, Float8OnADevice,
                         testing::Combine(testing::Values(1, 2, 4),
                                          testing::Values(Scaling::current, Scaling::delayed)),
                         title);

TEST_F(ModelsOnDevices, RefuseInputsOfTheHostInFloat8) {
  Products model;
  model.to(accelerator::device(0));
  Engine engine(model, World(), Plan::zero3().precision(Precision::fp8), AdamW{});
  EXPECT_TRUE(says(thrown_by([&] { model.up(numbers(0, {16, 32})); }), {"same device", "cpu"}));
}

}  // namespace zero::test::float8_test
