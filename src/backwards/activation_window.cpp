#include "backwards/activation_window.h"

#include <ATen/core/grad_mode.h>
#include <c10/core/Allocator.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/SmallVector.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "backwards/arguments.h"
#include "backwards/operator_kind.h"
#include "backwards/unwatched.h"
#include "base/random.h"
#include "base/restore.h"
#include "zero/error.h"

namespace zero {
namespace {

// About what operators do in that time, element by element; and how many times as long products take.
constexpr std::int64_t kBytesANanosecond = 4, kOfProducts = 8;

// Of a storage, about.
constexpr std::size_t kUsualReaders = 4;

std::int64_t nanoseconds_now() {
  return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
}

bool strided(const at::Tensor& tensor) {
  return tensor.unsafeGetTensorImpl()->has_storage() && tensor.layout() == at::kStrided;
}

template <class Numbers, class Number>
void add_once(Numbers& numbers, Number number) {
  if (std::find(numbers.begin(), numbers.end(), number) == numbers.end()) numbers.push_back(number);
}

}  // namespace

// One operator on its way through the window.
class ActivationWindow::Call {
 public:
  Call(ActivationWindow& window, const c10::OperatorHandle& op, const OperatorKind& its_kind,
       std::span<const c10::IValue> arguments)
      : kind(its_kind),
        its{.uses = TracedList<StorageUse>(&window.lists_), .results = TracedList<int>(&window.lists_), .units = {}} {
    its.uses.reserve(arguments.size());
    its.identity = its.alike = std::hash<c10::OperatorHandle>()(op);
    for (std::size_t i = 0; i < arguments.size(); ++i)
      for_each_defined(arguments[i], [&](const at::Tensor& tensor) { look(window, tensor, kind.writes[i] != 0); });
  }

  const OperatorKind& kind;
  TracedOperator its;
  bool plain = true;                                            // nothing keeps it from running again
  bool kept = !kind.of_library;                                 // others may read its arguments later
  c10::SmallVector<int, 6> storages;                            // that are traced, among the arguments
  c10::SmallVector<c10::StorageImpl*, 6> others;                // that are not
  c10::SmallVector<c10::StorageImpl*, 2> written;               // of these
  c10::SmallVector<std::pair<int, std::size_t>, 2> overwrites;  // bytes that it writes of a storage

 private:
  void look(ActivationWindow& window, const at::Tensor& tensor, bool writes) {
    if (!strided(tensor)) {
      plain = false;
      kept = true;
      return;
    }
    if (const auto number = window.storages_.number_of(tensor)) {
      const int version = window.state(*number).version;
      its.uses.push_back({*number, version, writes});
      its.identity = derived(its.identity, static_cast<std::uint64_t>(key(*number, version)));
      its.alike = derived(its.alike, static_cast<std::uint64_t>(window.storage(*number).bytes));
      add_once(storages, *number);
      if (writes) overwrites.emplace_back(*number, tensor.nbytes());
      return;
    }
    if (ActivationWindow* const another = ActivationWindow::of(tensor)) another->keep(tensor);
    its.identity = derived(its.identity, 1);
    others.push_back(impl_of(tensor));
    if (!writes) return;
    written.push_back(others.back());
    plain = plain && kind.statistics;
  }
};

void ActivationWindow::move_here() {
  const std::lock_guard lock(mutex_);
  storages_.move_here();
}

void ActivationWindow::ended(int number) {
  const std::lock_guard lock(mutex_);
  storage(number).death = static_cast<int>(trace_.operators.size());
  if (running_) return ended_.push_back(number);  // what the operator has written is not told yet
  die(number);
  book();
}

void ActivationWindow::allocating(std::int64_t bytes) {
  if (!storages_.here()) return;
  const std::lock_guard lock(mutex_);
  if (storages_.gone()) return;
  keep_within_budget(bytes);
  reach(bytes);
  if (running_) running_->most = std::max(running_->most, held() + bytes - running_->before);
}

// Who has read it cannot run again.
void ActivationWindow::before_write(const c10::StorageImpl* storage) {
  const auto readers = outside_.find(storage);
  if (readers == outside_.end()) return;
  std::vector<int> operators;
  for (const int number : readers->second)
    if (op(number).again) operators.push_back(number);
  outside_.erase(readers);
  stale(operators);
}

// -- Operators.

void ActivationWindow::run(const c10::OperatorHandle& handle, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const OperatorKind& kind = OperatorKind::of(handle);
  const std::size_t count = handle.schema().arguments().size();
  const std::span<const c10::IValue> arguments{stack->data() + (stack->size() - count), count};
  if (kind.composite || (kind.random && kind.generator < 0 && !draws_nothing(handle, arguments)))
    return handle.redispatchBoxed(keys, stack);
  const c10::impl::ExcludeDispatchKeyGuard off(kBelowKey);
  if (kind.views) return handle.redispatchBoxed(keys, stack);
  const std::lock_guard lock(mutex_);
  if (!storages_.here()) storages_.move_here();
  storages_.bury();
  if (!stored_.exact()) round_arguments(handle, arguments);
  Call call(*this, handle, kind, arguments);
  const int number = now_ = static_cast<int>(trace_.operators.size());
  call.its.backward = torch::autograd::get_current_graph_task_id() != -1;
  if (number > 0)
    call.its.identity = derived(call.its.identity, static_cast<std::uint64_t>(op(number - 1).result_bytes));
  plan_.meet(call.its.identity, number, executions(), so_far().again);
  prepare(call, handle, keys, arguments);
  execute(call, handle, keys, stack);
}

void ActivationWindow::prepare(Call& call, const c10::OperatorHandle& handle, c10::DispatchKeySet keys,
                               std::span<const c10::IValue> arguments) {
  bool recorded = !call.its.backward || at::GradMode::is_enabled();
  if (plan_.decided(now_)) {
    recorded_all_ = false;
    recorded = recorded && plan_.needs(now_);
  }
  for (const c10::StorageImpl* const written : call.written) before_write(written);
  if (call.kept)
    for (const int each : call.storages) Residue::keep(each);
  if (recorded || recorded_all_) {
    auto units = parameters_.units(arguments);
    call.its.again = recorded && call.plain && call.kind.repeatable && units;
    if (units) call.its.units = *std::move(units);
  }
  bring(call.storages);
  before_overwriting(call.its.uses);
  if (has_paged_in()) page_in(parameters_, arguments);  // others were, since the fallback above has seen to it
  make_room(0);
  std::unique_ptr<RecordedCall> again;
  if (call.its.again) {
    for (const c10::StorageImpl* const each : call.others) outside_[each].push_back(now_);
    again = std::make_unique<RecordedCall>(
        handle, keys, arguments, [this](const at::Tensor& tensor) { return storages_.number_of(tensor).has_value(); });
  }
  call.its.other_bytes = held() - bytes_;
  trace_.operators.push_back(std::move(call.its));
  calls_.push_back({handle, std::move(again)});
}

void ActivationWindow::execute(Call& call, const c10::OperatorHandle& handle, c10::DispatchKeySet keys,
                               torch::jit::Stack* stack) {
  const int number = now_;
  running_ = Running{.before = held()};
  // Only what a plan is made of; devices are asked for no clock.
  const bool timed = recorded_all_ && activation_trials().refuses && memory_.observes();
  const std::int64_t began = timed ? nanoseconds_now() : 0;
  try {
    handle.redispatchBoxed(keys, stack);
  } catch (...) {
    running_.reset();
    unpin(call.storages);
    op(number).again = false;
    ran();
    end_those_ended();
    throw;
  }
  TracedOperator& its = op(number);
  const std::int64_t took = timed ? nanoseconds_now() - began : 0;
  const Running running = *std::exchange(running_, std::nullopt);
  ran();
  written_by(call, number);
  const std::size_t returned = std::min(handle.schema().returns().size(), stack->size());
  if (call.kind.of_library) trace_results({stack->data() + (stack->size() - returned), returned}, call, number);
  std::int64_t moved = its.result_bytes;
  for (const int each : call.storages) moved += storage(each).bytes;
  its.work = moved / kBytesANanosecond * (call.kind.multiplies ? kOfProducts : 1);
  its.nanoseconds = timed ? took : its.work;
  its.scratch_bytes = std::max<std::int64_t>(0, running.most - its.result_bytes);
  if (!memory_.observes()) reach(0);  // else each allocation was
  unpin(call.storages);
  now_ = number + 1;  // what it has made goes before the next one, if it does: till then it may be read by pointer
  end_those_ended();
  book();
}

void ActivationWindow::end_those_ended() {
  for (const int number : std::exchange(ended_, {})) die(number);
}

void ActivationWindow::written_by(const Call& call, int number) {
  for (const int each : call.storages) {
    state(each).last_use = number;
    storage(each).readers.push_back(number);
    const auto& uses = op(number).uses;
    if (std::none_of(uses.begin(), uses.end(),
                     [&](const StorageUse& use) { return use.storage == each && use.written; }))
      continue;
    written(each);
    storage(each).writers.push_back(number);
  }
  for (const auto& [each, bytes] : call.overwrites)
    if (storages_.written(each, bytes)) storage(each).whole_from = state(each).version;
}

void ActivationWindow::trace_results(std::span<const c10::IValue> results, const Call& call, int number) {
  int place = -1;
  for (const c10::IValue& value : results)
    for_each_defined(value, [&](const at::Tensor& tensor) {
      ++place;
      if (!strided(tensor)) {  // it may refer to the arguments
        for (const int each : call.storages) storage(each).kept = true;
        return;
      }
      if (storages_.number_of(tensor)) return;
      c10::StorageImpl* const storage = impl_of(tensor);
      const c10::DataPtr& pointer = storage->_mutable_data_ptr_no_checks();
      const auto bytes = static_cast<std::int64_t>(storage->nbytes());
      if ((memory_.observes() && memory_.bytes_of(pointer.get()) == 0) || bytes < activation_trials().traced_from ||
          pointer.get_deleter() != c10::GetAllocator(storage->device_type())->raw_deleter())
        return;
      if (std::find(call.others.begin(), call.others.end(), storage) != call.others.end()) return;
      const int its = static_cast<int>(trace_.storages.size());
      trace_.storages.push_back(
          {.bytes = bytes, .writers = TracedList<int>({number}, &lists_), .readers = TracedList<int>(&lists_)});
      trace_.storages.back().readers.reserve(kUsualReaders);
      if (call.kind.allocates) trace_.storages.back().whole_from = TracedStorage::kNever;
      if (stored_) may_be_stored(tensor, its);
      storages_.add(tensor, call.kind.allocates, shared_from_this());
      op(number).results.push_back(its);
      op(number).result_bytes += bytes;
      born(its);
      if (RecordedCall* const call_again = again(number)) call_again->add_place(place);
    });
}

// On a device a backward goes on on another thread.
void ActivationWindow::require_here() {
  if (!memory_.observes()) storages_.move_here();
  storages_.require_here();
}

void ActivationWindow::touch(const at::Tensor& tensor) {
  const std::lock_guard lock(mutex_);
  const auto number = storages_.number_of(tensor);
  if (!number || state(*number).present) return;
  require_here();
  storages_.bury();
  plan_.leave();
  const c10::impl::ExcludeDispatchKeyGuard off(kBelowKey);
  bring(std::span(&*number, 1));
  unpin(std::span(&*number, 1));
}

void ActivationWindow::keep(const at::Tensor& tensor) {
  const std::lock_guard lock(mutex_);
  const auto number = storages_.number_of(tensor);
  if (!number) return;
  if (!state(*number).present) require_here();
  const c10::impl::ExcludeDispatchKeyGuard off(kBelowKey);
  Residue::keep(*number);
}

// -- The end.

void ActivationWindow::close() {
  const std::lock_guard lock(mutex_);
  if (storages_.gone()) return;
  storages_.bury();
  plan_.leave();
  keeping_all_ = true;
  const c10::impl::ExcludeDispatchKeyGuard off(kBelowKey);
  for (std::size_t i = 0; i < trace_.storages.size(); ++i) {
    const int number = static_cast<int>(i);
    if (!state(number).live || state(number).present) continue;
    bring(std::span(&number, 1));
    unpin(std::span(&number, 1));
  }
  abandon();
}

void ActivationWindow::abandon() noexcept {
  forget_all();
}

}  // namespace zero
