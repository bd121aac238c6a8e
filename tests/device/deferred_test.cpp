// Modules that are built without memory and whose constructors make tensors, and draw them, on a device.
#include "zero/deferred.h"

#include <ATen/Context.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <atomic>
#include <memory>

#include "device/offloads.h"

namespace zero::test::deferred_test {

using DeferredOnADevice = ModelsOnDevices;

constexpr std::int64_t kWidth = 96;
constexpr std::int64_t kMatrix = kWidth * kWidth * 4;  // bytes

// Values by every way that draws, or does not, on a device.
struct Layer : torch::nn::Module {
  explicit Layer(at::Device device) {
    const auto there = at::TensorOptions().device(device);
    at::Generator own = at::globalContext().defaultGenerator(device).clone();
    drawn = register_parameter("drawn", torch::randn({kWidth, kWidth}, there).mul_(0.1));
    between = register_parameter("between", torch::empty({kWidth, kWidth}, there));
    torch::nn::init::kaiming_uniform_(between);
    by_own = register_parameter("by_own", torch::empty({kWidth, kWidth}, there).normal_(0, 0.1, own));
    eye = register_parameter("eye", torch::eye(kWidth, there) + torch::zeros({kWidth}, there));
    moved = register_module("moved", torch::nn::Linear(kWidth, kWidth));
    moved->to(device);
    const at::NoGradGuard no_grad;
    moved->weight.uniform_(-0.1, 0.1);
  }
  at::Tensor forward(const at::Tensor& x) {
    return moved->forward(torch::tanh(x.matmul(drawn).matmul(between).matmul(by_own).matmul(eye)));
  }
  at::Tensor drawn, between, by_own, eye;
  torch::nn::Linear moved{nullptr};
};

struct Drawn : torch::nn::Module {
  explicit Drawn(at::Device device, std::int64_t count = 1) {
    for (std::int64_t i = 0; i < count; ++i) layers->push_back(std::make_shared<Layer>(device));
    counts = register_buffer("counts",
                             torch::randint(0, 1000, {kWidth, kWidth}, at::TensorOptions(at::kLong).device(device)));
  }
  at::Tensor loss(std::int64_t index) {
    at::Tensor x = numbers(index, {2, kWidth}).to(counts.device()).to(parameters().front().scalar_type());
    for (const auto& layer : *layers) x = layer->as<Layer>()->forward(x);
    return x.to(at::kFloat).square().mean();
  }
  torch::nn::ModuleList layers = register_module("layers", torch::nn::ModuleList());
  at::Tensor counts;
};

at::Generator seeded(at::Device device) {
  at::Generator generator = at::globalContext().defaultGenerator(device);
  generator.set_current_seed(11);
  torch::manual_seed(7);
  return generator;
}

// Values and place of the generators are those of building it whole, and nothing lies on the device until then but one
// tensor at a time.
TEST_F(DeferredOnADevice, HasTheBitsOfBuildingItWhole) {
  for (const at::Device device : {accelerator::device(0), at::Device(accelerator::kType), accelerator::device(1)}) {
    const at::Device there = device.has_index() ? device : accelerator::device(0);
    at::Generator generator = seeded(there);
    const auto whole = std::make_shared<Drawn>(device);
    const at::Tensor after = generator.get_state().clone(), next = torch::rand({3});
    seeded(there);
    const std::int64_t before = accelerator::statistics(there.index()).allocated;
    c10::getDeviceAllocator(accelerator::kType)->resetPeakStats(there.index());
    const auto later = zero::deferred([&] { return std::make_shared<Drawn>(device); });
    EXPECT_TRUE(at::equal(generator.get_state(), after));
    EXPECT_TRUE(at::equal(torch::rand({3}), next));
    EXPECT_LE(accelerator::statistics(there.index()).allocated - before, 4096);
    EXPECT_LE(accelerator::statistics(there.index()).peak - before, 2 * kMatrix + 4096);
    materialize(*later);
    EXPECT_TRUE(at::equal(generator.get_state(), after)) << "values are drawn from where they were to be";
    for (const auto& item : whole->named_parameters()) {
      EXPECT_EQ(later->named_parameters()[item.key()].device(), there) << item.key();
      EXPECT_TRUE(at::equal(item.value().cpu(), later->named_parameters()[item.key()].cpu())) << item.key();
    }
    EXPECT_TRUE(at::equal(whole->counts.cpu(), later->counts.cpu()));
  }
}

TEST_F(DeferredOnADevice, TrainsWithTheBitsOfBuildingItWhole) {
  const auto course = [](bool deferred) {
    const auto made = std::make_shared<std::atomic<int>>(0);
    return Course<Drawn>{.make = [=] {
      const at::Device device = accelerator::device((*made)++ % accelerator::kDevices);
      at::Generator(at::globalContext().defaultGenerator(device)).set_current_seed(3);
      const auto make = [&] { return std::make_shared<Drawn>(device, 2); };
      return deferred ? zero::deferred(make) : make();
    }};
  };
  for (const Plan& plan : {Plan::ddp(), Plan::zero2().bf16(), Plan::zero3(), Plan::zero3().bf16()})
    for (const int ranks : {1, 2}) {
      const Job job{plan, ranks};
      SCOPED_TRACE(describe(job));
      EXPECT_EQ(difference(train<Drawn>(job, course(false)), train<Drawn>(job, course(true))), "");
    }
}

// The device has room for a few layers, not for the model.
TEST_F(DeferredOnADevice, IsBuiltWhereItHasNoRoom) {
  const auto make = [] { return std::make_shared<Drawn>(accelerator::device(0), 16); };
  accelerator::set_capacity(0, 30 * kMatrix);
  EXPECT_THROW(make(), c10::Error);
  const auto model = zero::deferred(make);
  const Plan plan = offloaded(Plan::zero3(), Tier::host, Tier::host).offload(State::parameter, Tier::host);
  Engine engine(*model, World(), plan, Sgd{.lr = 0.1});
  for (int step = 0; step < 2; ++step) EXPECT_TRUE(train_step(*model, engine).applied);
}

}  // namespace zero::test::deferred_test
