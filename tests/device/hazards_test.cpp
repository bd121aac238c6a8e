// Faults of programs for a GPU, each of which shows here every time.
#include <ATen/ATen.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <cmath>
#include <csignal>

#include "device/fixture.h"

namespace zero::test::accelerator::hazards_test {

using ::testing::KilledBySignal;

const c10::impl::VirtualGuardImpl& guard() {
  static const c10::impl::VirtualGuardImpl kGuard(kType);
  return kGuard;
}

c10::Stream default_stream() {
  return guard().getDefaultStream(device(0));
}

c10::Stream new_stream() {
  return guard().getNewStream(device(0));
}

at::Tensor zeros() {
  at::Tensor tensor = at::zeros({4}, device(0));
  synchronize(0);
  return tensor;
}

float first(const at::Tensor& tensor) {
  return tensor[0].item<float>();
}

float first_on(c10::Stream stream, const at::Tensor& tensor) {
  const c10::StreamGuard on(stream);
  return first(tensor);
}

// The producer on one stream, the consumer on another, which waits for the event or does not.
float produced(bool event) {
  const at::Tensor x = zeros(), y = zeros();
  const c10::Stream producer = new_stream(), consumer = new_stream();
  fill(x, 1, producer);
  if (event) {
    c10::Event done(kType);
    done.record(producer);
    done.block(consumer);
  }
  twice(x, y, consumer);
  const float value = first_on(consumer, y);
  synchronize(0);
  return value;
}

void read_host(const at::Tensor& tensor) {
  volatile float value = static_cast<const float*>(tensor.const_data_ptr())[0];
  static_cast<void>(value);
}

class Hazards : public OnTheDevice {};
using HazardsDeathTest = Hazards;

TEST_F(HazardsDeathTest, TheHostTouchesTheDevicesMemory) {
  const at::Tensor x = zeros();
  EXPECT_EXIT(read_host(x), KilledBySignal(SIGSEGV), "");
  EXPECT_EXIT(static_cast<float*>(x.mutable_data_ptr())[0] = 1, KilledBySignal(SIGSEGV), "");
}

TEST_F(Hazards, WithoutAnEventTheConsumerIsTooEarly) {
  EXPECT_EQ(produced(/*event=*/false), 0);
  EXPECT_EQ(produced(/*event=*/true), 2);
  set_mode(Mode::eager);
  EXPECT_EQ(produced(/*event=*/false), 2);
}

TEST_F(Hazards, WithoutAnEventAnUnwrittenTensorIsPoison) {
  const at::Tensor x = at::empty({4}, device(0));
  const c10::Stream producer = new_stream();
  synchronize(0);
  fill(x, 1, producer);
  EXPECT_TRUE(std::isnan(first(x)));
  synchronize(0);
  EXPECT_EQ(first(x), 1);
}

TEST_F(Hazards, OperatorsAreTooEarlyToo) {
  const at::Tensor x = zeros();
  const c10::Stream side = new_stream();
  at::Tensor sum;
  {
    const c10::StreamGuard on(side);
    sum = x + 1;
  }
  EXPECT_TRUE(std::isnan(first(sum * 2)));
  EXPECT_EQ(first_on(side, sum), 1);
}

TEST_F(Hazards, RacesAreFaultsIfAskedFor) {
  set_race_faults(true);
  EXPECT_NE(error_of([] { produced(/*event=*/false); }).find("race"), std::string::npos);
  reset();
  set_race_faults(true);
  EXPECT_EQ(produced(/*event=*/true), 2);
}

TEST_F(Hazards, AWriteThatOvertakesARead) {
  set_race_faults(true);
  const at::Tensor x = zeros(), y = zeros();
  twice(x, y, new_stream());
  x.fill_(1);
  EXPECT_NE(error_of([] { synchronize(0); }).find("race"), std::string::npos);
}

TEST_F(Hazards, AKernelIsGivenFreedMemory) {
  at::Tensor x = zeros();
  const Access range = writes(x);
  x.reset();
  const auto enqueue = [&] { launch(default_stream(), {range}, [] {}); };
  EXPECT_NE(error_of(enqueue).find("use after free"), std::string::npos);
  synchronize(0);
  EXPECT_NE(error_of(enqueue).find("use after free"), std::string::npos);
}

TEST_F(Hazards, AKernelIsGivenOtherMemory) {
  const float host = 0;
  const at::Tensor x = zeros();
  const auto error = [&](const Access& range, c10::DeviceIndex on) {
    return error_of([&] { launch(guard().getDefaultStream(device(on)), {range}, [] {}); });
  };
  EXPECT_NE(error({&host, 4}, 0).find("not memory of the device"), std::string::npos);
  EXPECT_NE(error({x.const_data_ptr(), 17}, 0).find("not memory of the device"), std::string::npos);
  EXPECT_NE(error(reads(x), 1).find("not memory of the device"), std::string::npos);
  EXPECT_EQ(error(reads(x), 0), "");
}

TEST_F(Hazards, FreedWhileAnotherStreamUsesIt) {
  const c10::Stream side = new_stream();
  at::Tensor x = zeros();
  fill(x, 1, side);
  x.reset();
  EXPECT_NE(error_of([] { synchronize(0); }).find("record_stream is missing"), std::string::npos);
  EXPECT_EQ(error_of([] { synchronize(0); }), "");
}

TEST_F(Hazards, FreedAfterItWasRecorded) {
  const c10::Stream side = new_stream();
  at::Tensor x = zeros();
  fill(x, 1, side);
  x.record_stream(side);
  const std::int64_t bytes = statistics(0).allocated;
  x.reset();
  EXPECT_EQ(statistics(0).allocated, bytes);
  synchronize(0);
  EXPECT_EQ(statistics(0).allocated, bytes - 512);
}

TEST_F(Hazards, FreedAfterItsStreamWaits) {
  const c10::Stream side = new_stream();
  at::Tensor x = zeros();
  fill(x, 1, side);
  c10::Event done(kType);
  done.record(side);
  done.block(default_stream());
  x.reset();
  EXPECT_EQ(error_of([] { synchronize(0); }), "");
}

TEST_F(Hazards, FreedAfterTheHostWaited) {
  const c10::Stream side = new_stream();
  at::Tensor x = zeros();
  fill(x, 1, side);
  side.synchronize();
  x.reset();
  EXPECT_EQ(error_of([] { synchronize(0); }), "");
}

TEST_F(Hazards, MoreThanTheCapacity) {
  set_capacity(0, 4096);
  at::Tensor x = at::empty({512}, device(0));
  EXPECT_THROW(at::empty({1024}, device(0)), c10::OutOfMemoryError);
  EXPECT_NO_THROW(at::empty({1024}, device(1)));
  x.reset();
  EXPECT_NO_THROW(at::empty({1024}, device(0)));
  EXPECT_EQ(statistics(0).peak, 4096);
}

TEST_F(Hazards, WhatARecordedStreamStillUsesIsWaitedForWhenMemoryIsShort) {
  set_capacity(0, 4096);
  const c10::Stream side = new_stream();
  at::Tensor x = at::empty({1024}, device(0));
  c10::Event allocated(kType);
  allocated.record(default_stream());
  allocated.block(side);
  fill(x, 1, side);
  x.record_stream(side);
  x.reset();
  EXPECT_EQ(statistics(0).allocated, 4096);
  EXPECT_NO_THROW(at::empty({1024}, device(0)));
}

TEST_F(Hazards, APinnedBufferIsWrittenAgainBeforeItsCopyRan) {
  const at::Tensor x = zeros();
  at::Tensor pinned = at::ones({4}).pin_memory();
  EXPECT_TRUE(pinned.is_pinned());
  x.copy_(pinned, /*non_blocking=*/true);
  pinned.fill_(2);
  EXPECT_EQ(first(x), 2);
  at::Tensor pageable = at::ones({4});
  x.copy_(pageable, /*non_blocking=*/true);
  pageable.fill_(3);
  EXPECT_EQ(first(x), 1);
}

TEST_F(Hazards, APinnedBufferIsReadBeforeItsCopyRan) {
  const at::Tensor x = at::ones({4}, device(0));
  const at::Tensor pinned = at::zeros({4}).pin_memory();
  pinned.copy_(x, /*non_blocking=*/true);
  EXPECT_EQ(first(pinned), 0);
  synchronize(0);
  EXPECT_EQ(first(pinned), 1);
}

TEST_F(Hazards, TensorsOfTwoDevices) {
  const at::Tensor x = zeros(), y = at::zeros({4}, device(1));
  EXPECT_NE(error_of([&] { x + y; }).find("same device"), std::string::npos);
  EXPECT_NE(error_of([&] { x + at::zeros({4}); }).find("same device"), std::string::npos);
  EXPECT_EQ(first(x + at::ones({})), 1);
  EXPECT_EQ(first(x + y.to(device(0)) + 1), 1);
}

TEST_F(Hazards, CopiesBetweenDevicesWaitForBoth) {
  const at::Tensor x = at::ones({4}, device(0)), y = at::zeros({4}, device(1));
  y.copy_(x, /*non_blocking=*/true);
  x.fill_(2);
  EXPECT_EQ(first(y), 1);
}

TEST_F(Hazards, ErrorsOfTasksShowWhenTheHostWaits) {
  const at::Tensor x = zeros();
  launch(default_stream(), {}, [] { throw std::runtime_error("of a task"); });
  fill(x, 1, default_stream());
  EXPECT_EQ(error_of([] { synchronize(0); }), "of a task");
  EXPECT_EQ(first(x), 1);
  set_mode(Mode::eager);
  EXPECT_NO_THROW(launch(default_stream(), {}, [] { throw std::runtime_error("of a task"); }));
  EXPECT_EQ(error_of([&] { first(x); }), "of a task");
}

TEST_F(Hazards, ATaskUsesTheDevice) {
  launch(default_stream(), {}, [] { at::zeros({4}, device(0)); });
  EXPECT_NE(error_of([] { synchronize(0); }).find("must not"), std::string::npos);
}

TEST_F(Hazards, ATaskIsTheLastToHoldABlock) {
  for (const Mode mode : {Mode::lazy, Mode::eager}) {
    set_mode(mode);
    auto held = std::make_shared<at::Tensor>(zeros());
    launch(default_stream(), {}, [held] { held->reset(); });
    synchronize(0);
    EXPECT_EQ(live_blocks(0), 0);
  }
}

TEST_F(Hazards, BlocksThatStayAreLeaks) {
  const at::Tensor x = zeros();
  EXPECT_EQ(live_blocks(0), 1);
  EXPECT_NE(error_of([] { reset(); }).find("1 blocks of device 0 are live"), std::string::npos);
}

}  // namespace zero::test::accelerator::hazards_test
