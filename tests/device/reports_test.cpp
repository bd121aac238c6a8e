// Who hears of a device's memory.
#include "memory/torch/device_reports.h"

#include <gtest/gtest.h>
#include <torch/csrc/profiler/orchestration/observer.h>
#include <torch/torch.h>

#include <memory>

#include "device/fixture.h"
#include "memory/torch/arena_allocator.h"

namespace zero::test::reports_test {

using accelerator::device;
using torch::profiler::impl::ActiveProfilerType;
using torch::profiler::impl::ProfilerState;

class DeviceReportsTest : public accelerator::OnTheDevice {};

struct Counting final : MemoryObserver {
  void allocated(void*, std::size_t bytes) override { came += static_cast<std::int64_t>(bytes); }
  void freed(void*) override { ++went; }
  std::int64_t came = 0;
  int went = 0;
};

struct Profiler final : torch::profiler::impl::ProfilerStateBase {
  explicit Profiler(ActiveProfilerType type)
      : ProfilerStateBase(torch::profiler::impl::ProfilerConfig(ProfilerState::Disabled)), type_(type) {}
  void reportMemoryUsage(void*, std::int64_t bytes, std::size_t, std::size_t, c10::Device) override { sum += bytes; }
  ActiveProfilerType profilerType() override { return type_; }
  std::int64_t sum = 0;

 private:
  ActiveProfilerType type_;
};

TEST_F(DeviceReportsTest, AreOfOneDeviceAndOneScope) {
  Counting heard;
  at::Tensor kept;
  {
    const DeviceReports reports(device(1), heard);
    kept = at::empty({256}, device(1));
    at::empty({128}, device(1));
    at::empty({512}, device(0));
  }
  at::empty({128}, device(1));
  EXPECT_EQ(heard.came, 1024 + 512);
  EXPECT_EQ(heard.went, 1);
}

int operators = 0;
std::unique_ptr<at::ObserverContext> count_operator(const at::RecordFunction&) {
  ++operators;
  return nullptr;
}

// A profiler of LibTorch's would take what is in the slot for its own, when it hears of an operator.
TEST_F(DeviceReportsTest, GoToAProfilerWithoutItsOperators) {
  const auto callback = at::addThreadLocalCallback(at::RecordFunctionCallback(&count_operator));
  for (const ActiveProfilerType type : {ActiveProfilerType::NONE, ActiveProfilerType::KINETO}) {
    const auto profiler = std::make_shared<Profiler>(type);
    const c10::DebugInfoGuard slot(c10::DebugInfoKind::PROFILER_STATE, profiler);
    Counting heard;
    operators = 0;
    at::Tensor kept;
    {
      const DeviceReports reports(device(0), heard);
      kept = at::empty({256}, device(0));
    }
    EXPECT_EQ(heard.came, 1024);
    EXPECT_EQ(profiler->sum, 1024);
    EXPECT_EQ(operators > 0, type == ActiveProfilerType::NONE);
  }
  at::removeCallback(callback);
}

}  // namespace zero::test::reports_test
