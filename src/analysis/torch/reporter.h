// Hears of a device's memory and of LibTorch's operators on a thread: the profiler's door.
#pragma once

#include <ATen/record_function.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <torch/csrc/profiler/orchestration/observer.h>

#include <atomic>
#include <memory>
#include <optional>

#include "analysis/log.h"
#include "analysis/repetition.h"
#include "memory/torch/arena_allocator.h"

namespace zero {

// Takes the place of a profiler that is disabled: LibTorch casts what it finds there to its profilers' base.
class Reporter final : public torch::profiler::impl::ProfilerStateBase, public EndListener {
 public:
  Reporter(std::shared_ptr<MemoryLog> log, c10::Device device);

  // With negative sizes what is freed, but for the CPU's.
  void reportMemoryUsage(void* data, std::int64_t bytes, std::size_t allocated, std::size_t reserved,
                         c10::Device device) override;
  // LibTorch's own allocator of the CPU, from which older tensors are, then says nothing, also no warnings.
  bool memoryProfilingEnabled() const override { return false; }
  torch::profiler::impl::ActiveProfilerType profilerType() override;
  void ends(const void* data) override;

  // On the thread whose it is, outside of passes backward: to its operators, or no more. LibTorch tells each one of
  // thousands in a step, which costs a small model's step some percent: so only until the program repeats itself.
  void listen();
  void turn_away();

  c10::Device device() const { return device_; }

 private:
  BlockOrigin origin(std::int64_t bytes);
  Running running_at_home(std::int64_t bytes, const torch::autograd::Node* node, bool in_backward);
  Running heard(const torch::autograd::Node* node);
  void note_backward(int pass);
  void begin_round();

  std::shared_ptr<MemoryLog> log_;
  c10::Device device_;
  std::atomic<int> pass_ = -1;           // the latest backward
  std::atomic<bool> elsewhere_ = false;  // it has heard of other threads, where nothing is foretold
  Repetition repetition_;
  int round_ = -1;  // the pass backward after which it began
  std::optional<at::CallbackHandle> listening_;
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
};

}  // namespace zero
