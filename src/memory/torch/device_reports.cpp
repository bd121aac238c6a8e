#include "memory/torch/device_reports.h"

#include <torch/csrc/profiler/orchestration/observer.h>

#include <memory>

#include "memory/torch/arena_allocator.h"

namespace zero {
namespace {

using torch::profiler::impl::ActiveProfilerType;
using torch::profiler::impl::ProfilerConfig;
using torch::profiler::impl::ProfilerState;
using torch::profiler::impl::ProfilerStateBase;

const c10::DebugInfoKind& kSlot = c10::DebugInfoKind::PROFILER_STATE;

ProfilerStateBase* in_slot() {
  return static_cast<ProfilerStateBase*>(c10::ThreadLocalDebugInfo::get(kSlot));
}

// Takes the place of a profiler that is disabled: LibTorch casts what it finds there to its profilers' base.
class Told final : public ProfilerStateBase {
 public:
  Told(c10::Device device, MemoryObserver& hears)
      : ProfilerStateBase(ProfilerConfig(ProfilerState::Disabled)),
        device_(device),
        observer_(hears),
        before_(in_slot()) {}

  // With negative sizes what is freed.
  void reportMemoryUsage(void* data, std::int64_t bytes, std::size_t allocated, std::size_t reserved,
                         c10::Device device) override {
    if (before_ != nullptr) before_->reportMemoryUsage(data, bytes, allocated, reserved, device);
    if (device != device_ || data == nullptr) return;
    if (bytes < 0) return observer_.freed(data);
    observer_.allocated(data, static_cast<std::size_t>(bytes));
  }
  void reportOutOfMemory(std::int64_t bytes, std::size_t allocated, std::size_t reserved, c10::Device device) override {
    if (before_ != nullptr) before_->reportOutOfMemory(bytes, allocated, reserved, device);
  }
  bool memoryProfilingEnabled() const override { return before_ != nullptr && before_->memoryProfilingEnabled(); }
  ActiveProfilerType profilerType() override { return ActiveProfilerType::NONE; }

 private:
  c10::Device device_;
  MemoryObserver& observer_;
  ProfilerStateBase* before_;
};

std::optional<at::DisableRecordFunctionGuard> without_callbacks() {
  ProfilerStateBase* const before = in_slot();
  if (before == nullptr || before->profilerType() == ActiveProfilerType::NONE) return {};
  return std::optional<at::DisableRecordFunctionGuard>(std::in_place);
}

}  // namespace

DeviceReports::DeviceReports(c10::Device device, MemoryObserver& observer)
    : unseen_(without_callbacks()), guard_(kSlot, std::make_shared<Told>(device, observer)) {}

bool& Booking::now() {
  thread_local bool booking = false;
  return booking;
}

}  // namespace zero
