// Hears of LibTorch's memory and operators on a thread: the profiler's door.
#pragma once

#include <ATen/record_function.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <torch/csrc/profiler/orchestration/observer.h>

#include <atomic>
#include <memory>

#include "analysis/log.h"
#include "tier/arena_allocator.h"

namespace zero {

// Takes the place of a profiler that is disabled: LibTorch casts what it finds there to its profilers' base.
class Reporter final : public torch::profiler::impl::ProfilerStateBase, public EndListener {
 public:
  explicit Reporter(std::shared_ptr<MemoryLog> log);

  // With negative sizes what is freed, of GPUs.
  void reportMemoryUsage(void* data, std::int64_t bytes, std::size_t allocated, std::size_t reserved,
                         c10::Device device) override;
  // LibTorch's own allocator of the CPU, from which older tensors are, then says nothing, also no warnings.
  bool memoryProfilingEnabled() const override { return false; }
  torch::profiler::impl::ActiveProfilerType profilerType() override;
  void ends(const void* data) override { log_->went(data); }

  void node_runs() { log_->node_ran(); }
  // By the allocators of GPUs.
  std::int64_t reserved() const;

 private:
  static constexpr std::size_t kMostDevices = 64;

  std::shared_ptr<MemoryLog> log_;
  std::array<std::atomic<std::int64_t>, kMostDevices> reserved_{};
};

// While it lives, the reporter hears of this thread and of what works for it. Begins and ends on the same thread.
// Throws StateError where somebody else listens.
class Listening {
 public:
  explicit Listening(std::shared_ptr<Reporter> reporter);
  ~Listening();
  Listening(const Listening&) = delete;
  Listening& operator=(const Listening&) = delete;

 private:
  std::shared_ptr<Reporter> reporter_;
  c10::DebugInfoGuard guard_;
  at::CallbackHandle callback_;
};

}  // namespace zero
