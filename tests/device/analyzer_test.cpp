// The memory analyzer beside the device's own allocator.
#include <c10/core/CachingDeviceAllocator.h>
#include <torch/torch.h>

#include <map>
#include <thread>

#include "device/engines.h"
#include "folder.h"
#include "memory/torch/arena_allocator.h"
#include "ranks/torch_optimizers.h"
#include "zero/memory_analyzer.h"

namespace zero::test::analyzer_test {

using accelerator::statistics;

// Of sizes that the allocator does not round, in slices neither.
struct Even : torch::nn::Module {
  static constexpr std::int64_t kWidth = 512;
  Even() {
    for (int i = 0; i < 3; ++i) layers->push_back(torch::nn::Linear(kWidth, kWidth));
  }
  at::Tensor forward(std::int64_t index) {
    return layers->forward(numbers(index, {64, kWidth}).to(parameters().front().device())).relu();
  }
  at::Tensor loss(std::int64_t index) { return forward(index).square().mean(); }
  torch::nn::Sequential layers = register_module("layers", torch::nn::Sequential());
};

// The host's allocator reports, too.
class AnalyzerOfDevices : public ModelsOnDevices {
 protected:
  void SetUp() override {
    ModelsOnDevices::SetUp();
    use_reporting_allocator();
  }

  static at::Device device_of(const torch::nn::Module& module) { return module.parameters().front().device(); }

  static std::int64_t allocated_on(at::Device device) { return statistics(device.index()).allocated; }

  // The bytes of what lies in an engine's arenas, of which their memory does not depend.
  static std::int64_t in_arenas(const Engine& engine) {
    const Ledger ledger = engine.ledger();
    std::int64_t bytes = 0;
    for (const Owner owner : {Owner::parameter, Owner::optimizer, Owner::gradient, Owner::gathered, Owner::reduction})
      bytes += ledger[owner].bytes;
    return bytes;
  }

  // The same of a peak on one rank, on which nothing is gathered or on its way.
  static std::int64_t in_arenas(const MemoryPeak& peak) {
    return of(peak.owners, MemoryOwner::parameter) + of(peak.owners, MemoryOwner::optimizer) +
           of(peak.owners, MemoryOwner::gradient);
  }

  // What is there without being booked: arenas' memory, all of it once a step was made, and what was there before.
  static std::int64_t unbooked(at::Device device, Engine& engine) {
    static_cast<void>(engine.traffic());  // nothing is on its way any more
    accelerator::synchronize(device.index());
    return allocated_on(device) - (engine.ledger().held() - in_arenas(engine));
  }
};

const Optimizer kLibTorchs = brought<torch::optim::AdamW>(torch::optim::AdamWOptions(), "AdamW");

class AnalyzerBesideTheAllocator : public AnalyzerOfDevices,
                                   public testing::WithParamInterface<std::tuple<int, Precision, bool>> {
 protected:
  static Job job() {
    const auto [ranks, precision, torchs] = GetParam();
    Job job{.plan = Plan::ddp().precision(precision).accumulate(2), .ranks = ranks, .steps = 2};
    if (torchs) job.optimizer = kLibTorchs;
    return job;
  }
};

// Whenever nothing is on its way.
TEST_P(AnalyzerBesideTheAllocator, HoldsWhatIsAllocated) {
  under_every_plan(job(), [](const Job& job) {
    on_ranks(job, course_on<Even>(accelerator::kType), [&](Even& model, Engine& engine, int) {
      const at::Device device = device_of(model);
      train_step(model, engine);
      const std::int64_t before = unbooked(device, engine);
      MemoryAnalyzer analyzer(device);
      analyzer.watch(engine);
      const auto expect_the_same = [&](const char* moment) {
        static_cast<void>(engine.traffic());
        accelerator::synchronize(device.index());
        const MemoryRecord record = analyzer.record(moment);
        EXPECT_EQ(record.allocated - in_arenas(engine) + before, allocated_on(device)) << moment;
        EXPECT_EQ(record.reserved, statistics(device.index()).reserved) << moment;
        EXPECT_EQ(of(record.owners, MemoryOwner::parameter), engine.ledger()[Owner::parameter].bytes) << moment;
        EXPECT_EQ(of(record.owners, MemoryOwner::gradient), engine.ledger()[Owner::gradient].bytes) << moment;
        EXPECT_EQ(of(record.owners, MemoryOwner::optimizer), engine.ledger()[Owner::optimizer].bytes) << moment;
      };
      expect_the_same("begin");
      for (int micro = 0; micro < job.steps * job.plan.accumulate(); ++micro) {
        at::Tensor loss = model.loss(engine.micro_batch());
        expect_the_same("forward");
        engine.backward(loss);
        loss.reset();
        expect_the_same("backward");
        engine.step();
        expect_the_same("step");
      }
    });
  });
}

std::string title_of(const testing::TestParamInfo<AnalyzerBesideTheAllocator::ParamType>& tested) {
  const auto& [ranks, precision, torchs] = tested.param;
  return in_title(ranks, 2, precision) + (torchs ? "LibTorchs" : "Ours");
}

INSTANTIATE_TEST_SUITE_P(All, AnalyzerBesideTheAllocator,
                         testing::Combine(testing::Values(1, 2), testing::Values(Precision::fp32, Precision::bf16),
                                          testing::Bool()),
                         title_of);

// Where ranks exchange, what comes and goes at once on two threads makes a peak of the one or of the other.
TEST_F(AnalyzerOfDevices, HaveThePeakOfTheAllocator) {
  for (const Optimizer& optimizer : {Optimizer(AdamW{}), Optimizer(Muon{}), Optimizer(Adafactor{}), kLibTorchs})
    under_every_plan({.ranks = 1, .optimizer = optimizer}, [](const Job& job) {
      on_ranks(job, course_on<Even>(accelerator::kType), [&](Even& model, Engine& engine, int) {
        const at::Device device = device_of(model);
        train_step(model, engine);
        const std::int64_t before = unbooked(device, engine);
        c10::getDeviceAllocator(accelerator::kType)->resetPeakStats(device.index());
        MemoryAnalyzer analyzer(device);
        analyzer.watch(engine);
        for (int step = 0; step < job.steps; ++step) train_step(model, engine);
        const MemoryPeak peak = analyzer.report().peak;
        EXPECT_EQ(peak.bytes - in_arenas(peak) + before, statistics(device.index()).peak);
        EXPECT_GT(of(peak.owners, MemoryOwner::activation) + of(peak.owners, MemoryOwner::temporary), 0);
      });
    });
}

TEST_F(AnalyzerOfDevices, HaveTheActivationsOfTheCpu) {
  const auto activations = [](const Job& job, at::DeviceType kind) {
    std::vector<std::int64_t> bytes(static_cast<std::size_t>(job.ranks));
    on_ranks(job, course_on<Even>(kind), [&](Even& model, Engine& engine, int rank) {
      MemoryAnalyzer analyzer(device_of(model));
      analyzer.watch(engine);
      const at::Tensor out = model.forward(0);
      bytes[static_cast<std::size_t>(rank)] = of(analyzer.record("forward").owners, MemoryOwner::activation);
      engine.backward(out.sum());
    });
    return bytes;
  };
  for (const int ranks : {1, 2})
    for (const Precision precision : {Precision::fp32, Precision::bf16})
      under_every_plan({.plan = Plan::ddp().precision(precision), .ranks = ranks}, [&](const Job& job) {
        const std::vector<std::int64_t> here = activations(job, at::kCPU);
        EXPECT_GT(here.front(), 4 * 64 * Even::kWidth);
        EXPECT_EQ(here, activations(job, accelerator::kType));
      });
}

// Two programs' threads on one device, whose backwards run on the same thread of LibTorch's.
TEST_F(AnalyzerOfDevices, SeeTheirOwnThreadsMemoryWithoutAnEngineToo) {
  const auto measured = [](const at::Device& device) {
    MemoryAnalyzer analyzer(device);
    Even model;
    model.to(device);
    torch::optim::Adam optimizer(model.parameters(), 1e-3);
    analyzer.watch(model);
    analyzer.watch(optimizer);
    std::vector<OwnedBytes> held;
    for (int step = 0; step < 5; ++step) {
      at::Tensor loss = model.loss(step);
      held.push_back(analyzer.record("forward").owners);
      loss.backward();
      loss.reset();
      held.push_back(analyzer.record("backward").owners);
      optimizer.step();
      optimizer.zero_grad();
      held.push_back(analyzer.record("step").owners);
    }
    const MemoryReport report = analyzer.report();
    EXPECT_EQ(report.device, device.str());
    EXPECT_NE(report.peak.running, "");
    held.push_back(report.peak.owners);
    return held;
  };
  const std::vector<OwnedBytes> alone = measured(accelerator::device(1));
  const std::int64_t parameters = 3 * 4 * (Even::kWidth + 1) * Even::kWidth;
  EXPECT_GT(of(alone[0], MemoryOwner::activation), 3 * 4 * 64 * Even::kWidth);
  EXPECT_EQ(alone[1], (OwnedBytes{parameters, parameters}));
  EXPECT_EQ(alone[2], (OwnedBytes{parameters, 0, 2 * parameters}));
  std::array<std::vector<OwnedBytes>, 2> together;
  {
    std::vector<std::jthread> threads;
    for (auto& mine : together) threads.emplace_back([&] { mine = measured(accelerator::device(1)); });
  }
  for (const auto& mine : together) EXPECT_EQ(mine, alone);
}

struct Keeping : torch::autograd::Function<Keeping> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x, const at::Tensor& kept) {
    context->save_for_backward({kept});
    return x.view_as(x);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 torch::autograd::variable_list gradients) {
    return {gradients.front(), at::Tensor()};
  }
};

// What goes before anything comes in a backward has lived into it.
TEST_F(AnalyzerOfDevices, KnowThatBackwardBeganByWhatGoesFirst) {
  const at::Tensor x = at::ones({1 << 18}, accelerator::device(0)).requires_grad_(true);
  MemoryAnalyzer analyzer(accelerator::device(0));
  const at::Tensor loss = Keeping::apply(x, at::empty_like(x)).sum();
  loss.backward();
  EXPECT_GE(of(analyzer.report().peak.owners, MemoryOwner::activation), 1 << 20);
}

// What is saved behind training is copied to the host's memory.
TEST_F(AnalyzerOfDevices, HoldNoSnapshots) {
  const Folder folder;
  on_ranks({.ranks = 1}, course_on<Even>(accelerator::kType), [&](Even& model, Engine& engine, int) {
    MemoryAnalyzer analyzer(device_of(model));
    analyzer.watch(engine);
    const std::int64_t before = analyzer.record("begin").allocated;
    engine.save(folder.path(), {.background = true});
    EXPECT_EQ(analyzer.record("saving").peak, before);
    engine.finish_save();
    EXPECT_GT(engine.ledger()[Owner::snapshot].peak, 0);
  });
}

TEST_F(AnalyzerOfDevices, AreOfTheDeviceOfWhatTheyWatch) {
  const auto fault = [](at::Device device, const auto& watch) {
    return thrown_by([&] {
      MemoryAnalyzer analyzer(device);
      watch(analyzer);
    });
  };
  const at::Device device = accelerator::device(2);
  on_ranks<Even>({.ranks = 1}, {}, [&](Even& model, Engine& engine, int) {
    const std::string other = "the analyzer is of device '" + device.str() + "'";
    EXPECT_TRUE(says(fault(device, [&](auto& analyzer) { analyzer.watch(engine); }), {other, "on 'cpu'"}));
    EXPECT_EQ(fault(at::kCPU, [&](auto& analyzer) { analyzer.watch(engine); }), "");
    torch::nn::Linear plain(2, 2);
    EXPECT_TRUE(says(fault(device, [&](auto& analyzer) { analyzer.watch(*plain); }), {other, "on 'cpu'"}));
    EXPECT_TRUE(says(fault(device, [&](auto& analyzer) { analyzer.watch(plain->weight, MemoryOwner::parameter); }),
                     {other, "on 'cpu'"}));
    plain->bias.set_data(plain->bias.to(device));
    MemoryAnalyzer half(device);
    half.watch(*plain);
    EXPECT_EQ(half.record("watched").allocated, 2 * 4) << "the bias is there";
    train_step(model, engine);
  });
  const auto nothing = [](auto&) {};
  EXPECT_EQ(MemoryAnalyzer(accelerator::kType).report().device, "accelerator:0") << "the current one";
  EXPECT_TRUE(says(fault(accelerator::device(accelerator::kDevices), nothing), {"there is no device 'accelerator:"}));
  EXPECT_TRUE(says(fault(at::kXLA, nothing), {"there is no device 'xla'"}));
}

}  // namespace zero::test::analyzer_test
