#include "analysis/reporter.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <vector>

#include "zero/error.h"

namespace zero {
namespace {

const c10::DebugInfoKind& kSlot = c10::DebugInfoKind::PROFILER_STATE;

// The operators and nodes that run on this thread, outermost first.
thread_local std::vector<const at::RecordFunction*> running;

bool is_node(const at::RecordFunction& function) {
  return function.scope() == at::RecordScope::BACKWARD_FUNCTION;
}

std::unique_ptr<at::ObserverContext> begins(const at::RecordFunction& function) {
  running.push_back(&function);
  if (is_node(function))
    if (auto* const reporter = dynamic_cast<Reporter*>(c10::ThreadLocalDebugInfo::get(kSlot))) reporter->node_runs();
  return nullptr;
}

void ends(const at::RecordFunction& function, at::ObserverContext*) {
  const auto found = std::find(running.rbegin(), running.rend(), &function);
  if (found != running.rend()) running.erase(std::prev(found.base()));
}

// Operators that others call for their memory.
bool only_allocates(std::string_view name) {
  constexpr std::array<std::string_view, 5> names{"aten::empty", "aten::empty_like", "aten::empty_strided",
                                                  "aten::new_empty", "aten::resize_"};
  return std::ranges::find(names, name) != names.end();
}

// The innermost operator that computes, else the outermost.
Origin origin() {
  Origin origin;
  for (auto each = running.rbegin(); each != running.rend() && origin.node.empty(); ++each) {
    const std::string_view name = (*each)->name();
    if (is_node(**each)) {
      origin.node = name;
    } else if (origin.operation.empty() || only_allocates(origin.operation)) {
      origin.operation = name;
    }
  }
  origin.recorded = origin.node.empty() && at::GradMode::is_enabled();
  return origin;
}

const std::shared_ptr<Reporter>& alone(const std::shared_ptr<Reporter>& reporter) {
  if (c10::ThreadLocalDebugInfo::get(kSlot) == nullptr) return reporter;
  throw StateError("the thread has a MemoryAnalyzer, or a profiler of LibTorch, already", "end that one first");
}

}  // namespace

Reporter::Reporter(std::shared_ptr<MemoryLog> log)
    : ProfilerStateBase(torch::profiler::impl::ProfilerConfig(torch::profiler::impl::ProfilerState::Disabled)),
      log_(std::move(log)) {}

void Reporter::reportMemoryUsage(void* data, std::int64_t bytes, std::size_t, std::size_t reserved,
                                 c10::Device device) {
  if (!device.is_cpu() && device.has_index() && static_cast<std::size_t>(device.index()) < kMostDevices)
    reserved_[static_cast<std::size_t>(device.index())] = static_cast<std::int64_t>(reserved);
  if (bytes < 0) return log_->went(data);
  if (data != nullptr && bytes > 0) log_->came(data, bytes, origin());
}

torch::profiler::impl::ActiveProfilerType Reporter::profilerType() {
  return torch::profiler::impl::ActiveProfilerType::NONE;
}

std::int64_t Reporter::reserved() const {
  std::int64_t sum = 0;
  for (const auto& device : reserved_) sum += device;
  return sum;
}

Listening::Listening(std::shared_ptr<Reporter> reporter)
    : reporter_(alone(reporter)),
      guard_(kSlot, reporter_),
      callback_(
          at::addThreadLocalCallback(at::RecordFunctionCallback(&begins, &ends)
                                         .scopes({at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION}))) {
  use_reporting_allocator();
  add_listener(reporter_.get());
}

Listening::~Listening() {
  remove_listener(reporter_.get());
  at::removeCallback(callback_);
}

}  // namespace zero
