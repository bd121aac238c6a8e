// What LibTorch asks of a device: streams, events, memory, generators, and operators that are not its own.
#include <torch/torch.h>

#include <set>
#include <thread>

#include "device/fixture.h"

namespace zero::test::accelerator::operators_test {

class Devices : public OnTheDevice {
 protected:
  const c10::impl::VirtualGuardImpl guard{kType};
};

TEST_F(Devices, AreLibTorchsAccelerator) {
  EXPECT_EQ(at::getAccelerator(), kType);
  EXPECT_EQ(at::accelerator::deviceCount(), kDevices);
  EXPECT_EQ(at::Device("accelerator:1"), device(1));
  const c10::DeviceGuard on(device(1));
  EXPECT_EQ(at::accelerator::getDeviceIndex(), 1);
  EXPECT_EQ(at::empty({1}, kType).device(), device(1));
  EXPECT_THROW(at::empty({1}, device(kDevices)), c10::Error);
}

TEST_F(Devices, HaveStreams) {
  EXPECT_EQ(guard.getStream(device(0)), guard.getDefaultStream(device(0)));
  const c10::Stream pooled = guard.getStreamFromGlobalPool(device(1)), fresh = guard.getNewStream(device(1));
  EXPECT_NE(pooled, fresh);
  const c10::StreamGuard on(pooled);
  EXPECT_EQ(guard.getStream(device(1)), pooled);
  EXPECT_EQ(guard.getDevice(), device(1));
}

TEST_F(Devices, PollingAnEventEnds) {
  const c10::Stream one = guard.getNewStream(device(0)), other = guard.getNewStream(device(0));
  const at::Tensor x = at::zeros({4}, device(0));
  synchronize(0);
  fill(x, 1, one);
  c10::Event filled(kType), waited(kType);
  EXPECT_TRUE(filled.query());
  filled.record(one);
  filled.block(other);
  waited.record(other);
  EXPECT_FALSE(waited.query());
  EXPECT_FALSE(filled.query() && waited.query());
  while (!waited.query()) continue;
  EXPECT_TRUE(filled.query());
  EXPECT_TRUE(one.query());
}

TEST_F(Devices, AnEventIsWaitedForAlone) {
  const c10::Stream stream = guard.getNewStream(device(0));
  int done = 0;
  launch(stream, {}, [&] { ++done; });
  c10::Event event(kType);
  event.record(stream);
  launch(stream, {}, [&] { ++done; });
  EXPECT_EQ(done, 0);
  event.synchronize();
  EXPECT_EQ(done, 1);
  stream.synchronize();
  EXPECT_EQ(done, 2);
}

TEST_F(Devices, CountTheirMemory) {
  const at::Tensor x = at::zeros({1000}, device(1));
  EXPECT_EQ(statistics(1).allocated, 4096);
  EXPECT_EQ(live_blocks(1), 1);
  const auto stats = at::accelerator::getDeviceStats(1);
  EXPECT_EQ(stats.allocated_bytes[0].current, 4096);
  set_capacity(1, 8192);
  EXPECT_EQ(at::accelerator::getMemoryInfo(1), (std::pair<std::size_t, std::size_t>(4096, 8192)));
}

class Operators : public OnTheDevice {};

at::Tensor to_device(const at::Tensor& tensor) {
  return tensor.to(device(0));
}

// The same on the device as on the host.
template <class Call>
void expect_same(const Call& call) {
  torch::manual_seed(3);
  const at::Tensor host = call(at::kCPU);
  torch::manual_seed(3);
  const at::Tensor ours = call(device(0));
  EXPECT_EQ(ours.device(), device(0));
  EXPECT_EQ(ours.strides(), host.strides());
  EXPECT_TRUE(at::equal(ours.cpu(), host));
}

at::Tensor numbers(c10::Device where) {
  return at::arange(24, at::kFloat).view({4, 6}).to(where);
}

TEST_F(Operators, OnViewsWriteOnlyThere) {
  expect_same([](c10::Device where) {
    at::Tensor x = numbers(where);
    x.t().select(0, 1).add_(100);
    x.slice(1, 2, 6, 2).mul_(-1);
    x[3].view({2, 3}).transpose(0, 1).copy_(at::ones({3, 2}));
    x.index_put_({at::tensor({0, 1}).to(where), at::tensor({0, 2}).to(where)}, at::full({}, 7.f));
    x.masked_fill_(x > 20, 3);
    return x;
  });
}

TEST_F(Operators, WriteWhereTheyAreTold) {
  expect_same([](c10::Device where) {
    at::Tensor out = at::empty({0}, at::device(where));
    at::cat_out(out, {numbers(where), numbers(where)}, 1);
    at::Tensor part = out.slice(0, 1, 3);
    at::add_out(part, part, part);
    at::Tensor found = at::empty({0}, at::device(where).dtype(at::kLong));
    at::nonzero_out(found, out > 9);
    return out + found.sum();
  });
}

TEST_F(Operators, WithListsAndOptionalTensors) {
  expect_same([](c10::Device where) {
    std::vector<at::Tensor> list = {numbers(where), numbers(where) + 1};
    at::_foreach_mul_(list, 2);
    at::_foreach_add_(list, list, 0.5);
    const at::Tensor index = at::tensor({3, 1}).to(where);
    const at::Tensor rows = at::stack(list).index({torch::indexing::Slice(), index});
    return std::get<0>(rows.sort(-1, /*descending=*/true));
  });
}

TEST_F(Operators, ChangeTypesAndLayouts) {
  expect_same([](c10::Device where) {
    const at::Tensor x = numbers(where).to(at::kBFloat16).t().contiguous();
    return x.to(at::kDouble).unfold(0, 2, 2).permute({2, 0, 1}) + x[0][0].item<double>();
  });
}

TEST_F(Operators, OfAttention) {
  at::globalContext().setSDPUseFlash(false);
  expect_same([](c10::Device where) {
    const at::Tensor x = at::randn({2, 2, 5, 4}).to(where);
    return at::scaled_dot_product_attention(x, x, x, {}, 0.0, /*is_causal=*/true);
  });
  at::globalContext().setSDPUseFlash(true);
}

TEST_F(Operators, ResizeTheirStorage) {
  const at::Tensor x = to_device(at::ones({2, 3}));
  x.resize_({4, 3});
  EXPECT_EQ(x.slice(0, 0, 2).sum().item<float>(), 6);
  EXPECT_TRUE(x[3][2].isnan().item<bool>());
  at::Tensor y = at::empty({0}, device(0));
  y.set_(x.storage(), 1, {2, 2}, {3, 1});
  y.fill_(5);
  EXPECT_EQ(x.slice(0, 0, 2).sum().item<float>(), 22);
}

TEST_F(Operators, DrawWhatTheCpuDraws) {
  const auto same = [](auto draw) {
    expect_same([&](c10::Device where) { return draw(at::zeros({3, 40}, at::device(where))); });
  };
  same([](at::Tensor x) { return x.normal_(); });
  same([](at::Tensor x) { return x.uniform_(); });
  same([](at::Tensor x) { return x.t().bernoulli_(0.3); });
  same([](at::Tensor x) { return x.random_(1000); });
  same([](const at::Tensor& x) { return at::randperm(20, x.options().dtype(at::kLong)); });
  same([](const at::Tensor& x) { return at::multinomial(x + 0.5, 3); });
  same([](const at::Tensor& x) { return at::randn_like(x); });
  same([](const at::Tensor& x) { return at::dropout(x + 1, 0.5, true); });
}

TEST_F(Operators, DrawFromTheirDevicesGenerator) {
  at::Generator generator = at::globalContext().getAcceleratorHooksInterface(kType).getNewGenerator(0);
  generator.set_current_seed(5);
  const at::Tensor state = generator.get_state();
  const at::Tensor x = at::empty({9}, device(0)).normal_(0, 1, generator);
  generator.set_state(state);
  EXPECT_TRUE(at::equal(x.cpu(), at::empty({9}, device(0)).normal_(0, 1, generator).cpu()));
  EXPECT_THROW(at::empty({9}, device(1)).normal_(0, 1, generator), c10::Error);
  EXPECT_THROW(at::empty({9}, device(0)).normal_(0, 1, at::detail::getDefaultCPUGenerator()), c10::Error);
}

TEST_F(Operators, OfTwoThreads) {
  const auto work = [](c10::DeviceIndex index) {
    const c10::StreamGuard on(c10::impl::VirtualGuardImpl(kType).getNewStream(device(index)));
    at::Tensor x = at::ones({8, 8}, device(index)).requires_grad_();
    for (int i = 0; i < 50; ++i) x = x.matmul(x).div(8);
    x.sum().backward();
    EXPECT_EQ(x.sum().item<float>(), 64);
  };
  std::thread other([&] { work(1); }), same([&] { work(0); });
  work(0);
  other.join();
  same.join();
}

TEST_F(Operators, LeaveWhatTheyFailOnAsItWas) {
  const at::Tensor x = to_device(at::ones({2, 3}));
  EXPECT_THROW(x.index_add_(0, to_device(at::tensor({0, 9})), x), c10::Error);
  EXPECT_EQ(x.sum().item<float>(), 6);
}

TEST_F(Operators, UnderAutocastAreThoseOfTheCpu) {
  const auto registered = [](c10::DispatchKey key) {
    std::set<std::string> names;
    for (const auto& name : c10::Dispatcher::singleton().getRegistrationsForDispatchKey(key))
      if (name.name.starts_with("aten::")) names.insert(c10::toString(name));
    return names;
  };
  EXPECT_GT(registered(c10::DispatchKey::AutocastCPU).size(), 50u);
  EXPECT_EQ(registered(c10::DispatchKey::AutocastPrivateUse1), registered(c10::DispatchKey::AutocastCPU));
}

}  // namespace zero::test::accelerator::operators_test
