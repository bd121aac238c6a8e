#include "analysis/torch/reporter.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <typeinfo>
#include <unordered_map>
#include <vector>

#include "memory/torch/device_reports.h"
#include "zero/error.h"

namespace zero {
namespace {

using torch::autograd::get_current_graph_task_id;
using torch::autograd::Node;

const c10::DebugInfoKind& kSlot = c10::DebugInfoKind::PROFILER_STATE;

// Whose thread this is.
thread_local const Reporter* at_home = nullptr;

// The operators that run on this thread, outermost first, as far as they were listened to.
thread_local std::vector<const at::RecordFunction*> running;

std::unique_ptr<at::ObserverContext> begins(const at::RecordFunction& function) {
  running.push_back(&function);
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

// The innermost operator that computes, else the outermost; of what runs for a node, within the node.
std::string_view running_operation() {
  std::string_view operation;
  for (auto each = running.rbegin(); each != running.rend(); ++each) {
    const std::string_view name = (*each)->name();
    if (name.starts_with("autograd::engine::")) break;
    operation = name;
    if (!only_allocates(operation)) break;
  }
  return operation;
}

// To name a node takes long.
std::string_view name_of(const Node& node) {
  thread_local std::unordered_map<const std::type_info*, std::string> names;
  const auto [found, added] = names.try_emplace(&typeid(node));
  if (added) found->second = node.name();
  return found->second;
}

const std::shared_ptr<Reporter>& alone(const std::shared_ptr<Reporter>& reporter) {
  if (c10::ThreadLocalDebugInfo::get(kSlot) == nullptr) return reporter;
  throw StateError("the thread has a MemoryAnalyzer, or a profiler of LibTorch, already", "end that one first");
}

}  // namespace

Reporter::Reporter(std::shared_ptr<MemoryLog> log, c10::Device device)
    : ProfilerStateBase(torch::profiler::impl::ProfilerConfig(torch::profiler::impl::ProfilerState::Disabled)),
      log_(std::move(log)),
      device_(device) {}

// What is booked may lie where a tensor was of which the end went unheard.
void Reporter::reportMemoryUsage(void* data, std::int64_t bytes, std::size_t, std::size_t, c10::Device device) {
  if (device != device_ || data == nullptr || bytes == 0) return;
  if (bytes > 0 && !Booking::now()) return log_->came(data, bytes, origin(bytes));
  note_backward(get_current_graph_task_id());
  log_->went(data);
}

void Reporter::ends(const void* data) {
  if (at_home == this) note_backward(get_current_graph_task_id());
  log_->went(data);
}

void Reporter::note_backward(int pass) {
  if (pass != -1 && pass_.exchange(pass) != pass) log_->backward_began();
}

BlockOrigin Reporter::origin(std::int64_t bytes) {
  const int pass = get_current_graph_task_id();
  note_backward(pass);
  const bool in_backward = pass != -1;
  const auto node = in_backward ? torch::autograd::get_current_node() : nullptr;
  const bool recorded = !in_backward && at::GradMode::is_enabled();
  if (at_home == this) return {running_at_home(bytes, node.get(), in_backward), recorded};
  elsewhere_ = true;
  return {heard(node.get()), recorded};
}

Running Reporter::heard(const Node* node) {
  return {log_->number(running_operation()), node == nullptr ? 0 : log_->number(name_of(*node))};
}

Running Reporter::running_at_home(std::int64_t bytes, const Node* node, bool in_backward) {
  if (!in_backward && std::exchange(round_, pass_.load()) != pass_) begin_round();
  const AllocationSign sign{bytes, node == nullptr ? nullptr : &typeid(*node)};
  if (listening_) {
    const Running now = heard(node);
    repetition_.add(sign, now);
    return now;
  }
  if (const Running* const foretold = repetition_.next(sign)) return *foretold;
  if (!in_backward) listen();
  return {0, heard(node).node};
}

void Reporter::begin_round() {
  const bool repeats = repetition_.end_round() && !elsewhere_;
  if (repeats) {
    turn_away();
  } else if (!listening_) {
    listen();
  }
}

void Reporter::listen() {
  at_home = this;
  listening_ =
      at::addThreadLocalCallback(at::RecordFunctionCallback(&begins, &zero::ends).scopes({at::RecordScope::FUNCTION}));
}

void Reporter::turn_away() {
  if (listening_) at::removeCallback(*listening_);
  listening_.reset();
}

torch::profiler::impl::ActiveProfilerType Reporter::profilerType() {
  return torch::profiler::impl::ActiveProfilerType::NONE;
}

Listening::Listening(std::shared_ptr<Reporter> reporter) : reporter_(alone(reporter)), guard_(kSlot, reporter_) {
  reporter_->listen();
  if (!reporter_->device().is_cpu()) return;
  use_reporting_allocator();
  add_listener(reporter_.get());
}

Listening::~Listening() {
  remove_listener(reporter_.get());
  reporter_->turn_away();
  at_home = nullptr;
}

}  // namespace zero
