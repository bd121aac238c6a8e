// How much of a device and of its host models take whose states are on the host.
#include <c10/core/CachingDeviceAllocator.h>
#include <gtest/gtest.h>

#include <atomic>

#include "device/offloads.h"
#include "zero/deferred.h"
#include "zero/error.h"

namespace zero::test::offload_memory_test {

constexpr std::int64_t kPlenty = std::int64_t{1} << 40;

using MemoryOfOffloading = ModelsOnDevices;

// What is on the host is on no device, and is as large as was foreseen, with what it passes through.
TEST_F(MemoryOfOffloading, TakesTheBytesOfTheEstimate) {
  for (const Plan& plan : {Plan::zero1(), Plan::zero2(), Plan::zero3()})
    for (const int accumulate : {1, 2})
      for (const int ranks : {1, 2}) {
        const Job job{.plan = to_host(plan).bf16().accumulate(accumulate), .ranks = ranks, .joined = linked};
        SCOPED_TRACE(describe(job));
        on_ranks<Broad>(job, course_on<Broad>(accelerator::kType), [&](Broad& model, Engine& engine, int) {
          for (int step = 0; step < 2; ++step) train_step(model, engine);
          const Ledger ledger = engine.ledger();
          const Estimate estimate = engine.estimate();
          EXPECT_GT(estimate.held.on(Tier::host, Owner::optimizer).bytes, 0);
          EXPECT_EQ(ledger.on(Tier::host, Owner::optimizer).bytes,
                    estimate.held.on(Tier::host, Owner::optimizer).bytes);
          EXPECT_EQ(ledger.on(Tier::host, Owner::gradient).peak, estimate.held.on(Tier::host, Owner::gradient).bytes);
          EXPECT_EQ(ledger.on(Tier::host, Owner::update).peak, estimate.held.on(Tier::host, Owner::update).peak);
          EXPECT_EQ(ledger[Owner::optimizer].peak + ledger[Owner::gradient].peak + ledger[Owner::update].peak, 0);
          EXPECT_EQ(ledger[Owner::parameter].bytes, estimate.held.on(Tier::device, Owner::parameter).bytes);
          EXPECT_EQ(ledger[Owner::reduction].peak, estimate.held[Owner::reduction].peak);
          EXPECT_LE(ledger.peak_held, estimate.held.peak_held);
        });
      }
}

// Of 26 layers, beside which one row of activations is next to nothing.
struct Deep : torch::nn::Module {
  explicit Deep(std::int64_t layers_of = 26, std::int64_t width_of = 128) : width(width_of) {
    for (std::int64_t i = 0; i < layers_of; ++i) layers->push_back(torch::nn::Linear(width, width));
  }
  at::Tensor loss(std::int64_t index) {
    return layers->forward(numbers(index, {1, width}).to(parameters().front().device())).to(at::kFloat).square().mean();
  }
  std::int64_t width;
  torch::nn::Sequential layers = register_module("layers", torch::nn::Sequential());
};

void lift_capacities() {
  for (c10::DeviceIndex device = 0; device < accelerator::kDevices; ++device)
    accelerator::set_capacity(device, kPlenty);
}

// What else than an engine's there is on the devices while it trains, at most.
std::int64_t beside(const Job& job) {
  lift_capacities();
  std::atomic<std::int64_t> most = 0;
  on_ranks<Deep>(job, course_on<Deep>(accelerator::kType), [&](Deep& model, Engine& engine, int) {
    const c10::DeviceIndex device = model.parameters().front().device().index();
    c10::getDeviceAllocator(accelerator::kType)->resetPeakStats(device);
    for (int step = 0; step < job.steps; ++step) train_step(model, engine);
    const std::int64_t others = accelerator::statistics(device).peak - engine.ledger().peak_held;
    for (std::int64_t seen = most; seen < others && !most.compare_exchange_weak(seen, others);) {
    }
  });
  return most;
}

// Trains where each device has so much of what the plan is predicted to need, and that beside it.
void train_within(const Job& job, double share, std::int64_t beside) {
  lift_capacities();
  on_ranks<Deep>(job, course_on<Deep>(accelerator::kType), [&](Deep& model, Engine& engine, int) {
    const c10::DeviceIndex device = model.parameters().front().device().index();
    const double needed = share * static_cast<double>(engine.estimate().held.peak_held);
    accelerator::set_capacity(device, static_cast<std::int64_t>(needed) + beside);
    for (int step = 0; step < job.steps; ++step) train_step(model, engine);
    accelerator::set_capacity(device, kPlenty);
  });
}

TEST_F(MemoryOfOffloading, NeedsOfADeviceWhatWasPredicted) {
  for (const Plan& plan : {to_host(Plan::zero1()), to_host(Plan::zero2()), to_host(Plan::zero3()),
                           offloaded(Plan::zero2(), Tier::host, Tier::device)})
    for (const int accumulate : {1, 2}) {
      const Job job{.plan = Plan(plan).bf16().accumulate(accumulate), .ranks = 4, .joined = linked};
      SCOPED_TRACE(describe(job));
      const std::int64_t others = beside(job);
      EXPECT_EQ(thrown_by([&] { train_within(job, 1.1, others); }), "");
      EXPECT_TRUE(
          says(thrown_by([&] { train_within(job, 0.97, others); }), {"has no memory left in", "needs", "bytes"}));
    }
}

std::int64_t elements(const Layout& layout) {
  std::int64_t sum = 0;
  for (const UnitLayout& unit : layout.units()) sum += unit.length();
  return sum;
}

// Two bytes for each parameter, and buffers that depend on the largest unit.
TEST_F(MemoryOfOffloading, LeavesTheDeviceTwoBytesAParameter) {
  for (const int ranks : {1, 2}) {
    const Job job{.plan = to_host(Plan::zero2()).bf16(), .ranks = ranks, .joined = linked};
    on_ranks<Deep>(job, course_on<Deep>(accelerator::kType), [&](Deep& model, Engine& engine, int rank) {
      for (int step = 0; step < 3; ++step) train_step(model, engine);
      const Estimate estimate = engine.estimate();
      const Ledger ledger = engine.ledger();
      EXPECT_EQ(estimate.on(Tier::device), (StateBytes{.parameter = 2 * elements(engine.layout())}));
      EXPECT_EQ(ledger[Owner::parameter].bytes, 2 * elements(engine.layout()));
      EXPECT_LE(ledger.peak_held, 2 * elements(engine.layout()) + estimate.held[Owner::reduction].peak);
      EXPECT_LT(estimate.held[Owner::reduction].peak, elements(engine.layout()) / 3);
      if (rank == 0)
        RecordProperty(
            "device_bytes_per_parameter_on_" + std::to_string(ranks),
            std::to_string(static_cast<double>(ledger.peak_held) / static_cast<double>(engine.layout().numel())));
    });
  }
}

// How many layers of one width an engine takes over and trains on a device of so many bytes, built without memory.
std::int64_t most_layers(const Plan& plan, std::int64_t capacity) {
  constexpr std::int64_t kWidth = 96;
  const auto fits = [&](std::int64_t layers) {
    const auto model = zero::deferred([&] {
      auto made = std::make_shared<Deep>(layers, kWidth);
      made->to(accelerator::device(0));
      return made;
    });
    accelerator::set_capacity(0, capacity);
    const std::string fault = thrown_by([&] {
      Engine engine(*model, World(), plan, AdamW{});
      for (int step = 0; step < 2; ++step) train_step(*model, engine);
    });
    accelerator::set_capacity(0, kPlenty);
    return fault.empty();
  };
  std::int64_t most = 0;
  for (std::int64_t step = 512; step > 0; step /= 2)
    if (fits(most + step)) most += step;
  return most;
}

TEST_F(MemoryOfOffloading, TrainsModelsSixAndAHalfTimesAsLarge) {
  constexpr std::int64_t kCapacity = std::int64_t{8} << 20;
  const std::int64_t without = most_layers(Plan::zero2().bf16(), kCapacity);
  const std::int64_t with = most_layers(to_host(Plan::zero2().bf16()), kCapacity);
  RecordProperty("layers_without", std::to_string(without));
  RecordProperty("layers_with", std::to_string(with));
  EXPECT_GE(static_cast<double>(with), 6.5 * static_cast<double>(without)) << with << " and " << without;
  const std::int64_t all = most_layers(to_host(Plan::zero3().bf16()).offload(State::parameter, Tier::host), kCapacity);
  RecordProperty("layers_with_parameters_elsewhere", std::to_string(all));
  EXPECT_GE(all, 15 * without) << all << " and " << without;
}

}  // namespace zero::test::offload_memory_test
