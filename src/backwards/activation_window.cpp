#include "backwards/activation_window.h"

#include <ATen/core/grad_mode.h>
#include <c10/core/Allocator.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <utility>

#include "backwards/arguments.h"
#include "backwards/operator_kind.h"
#include "backwards/unwatched.h"
#include "base/random.h"
#include "base/text.h"
#include "zero/error.h"

namespace zero {
namespace {

ActivationTrials trials;
// Micro-batches of other shapes are told apart by so many operators.
constexpr int kTellTale = 32;
// About what operators do in that time, element by element; and how many times as long products take.
constexpr std::int64_t kBytesANanosecond = 4, kOfProducts = 8;
constexpr const char* kKeep = "give the tensor to zero::keep() in the forward, which keeps it as it is";

std::int64_t nanoseconds_now() {
  return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
}

bool strided(const at::Tensor& tensor) {
  return tensor.unsafeGetTensorImpl()->has_storage() && tensor.layout() == at::kStrided;
}

c10::StorageImpl* storage_impl(const at::Tensor& tensor) {
  return tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
}

c10::Storage copy_of(const c10::Storage& from) {
  c10::Storage to(c10::Storage::use_byte_size_t(), from.nbytes(), c10::GetAllocator(from.device_type()),
                  /*resizable=*/false);
  std::memcpy(to.mutable_data(), from.data(), from.nbytes());
  return to;
}

// Of all bytes, in words of eight, along four chains.
std::uint64_t digest_of(const void* data, std::size_t bytes) {
  constexpr std::uint64_t kFactor = 0x9E3779B97F4A7C15;
  std::array<std::uint64_t, 4> chains{1, 2, 3, 4};
  const auto* const from = static_cast<const unsigned char*>(data);
  std::size_t i = 0;
  for (; i + sizeof chains <= bytes; i += sizeof chains) {
    std::array<std::uint64_t, 4> words;
    std::memcpy(words.data(), from + i, sizeof words);
    for (std::size_t k = 0; k < chains.size(); ++k) chains[k] = (chains[k] ^ words[k]) * kFactor;
  }
  std::uint64_t digest = bytes;
  for (const std::uint64_t chain : chains) digest = derived(digest, chain);
  for (; i < bytes; ++i) digest = derived(digest, from[i]);
  return digest;
}

// Of a result's storage, those that have values: not what a kernel used before, nor the workspaces of libraries.
std::size_t checked_bytes(const at::Tensor& result) {
  if (result.scalar_type() == at::kByte || result.storage_offset() != 0 || !result.is_non_overlapping_and_dense())
    return 0;
  return result.nbytes();
}

template <class Number>
void add_once(std::vector<Number>& numbers, Number number) {
  if (std::find(numbers.begin(), numbers.end(), number) == numbers.end()) numbers.push_back(number);
}

}  // namespace

void set_activation_trials(const ActivationTrials& given) {
  trials = given;
}

const ActivationTrials& activation_trials() {
  return trials;
}

// What a traced storage's data pointer has as context.
struct ActivationWindow::Tag {
  std::shared_ptr<ActivationWindow> window;
  int number;
};

// One operator on its way through the window.
class ActivationWindow::Call {
 public:
  Call(ActivationWindow& window, const c10::OperatorHandle& op, std::span<const c10::IValue> arguments)
      : kind(OperatorKind::of(op)) {
    its.identity = its.alike = std::hash<c10::OperatorHandle>()(op);
    for (std::size_t i = 0; i < arguments.size(); ++i)
      for_each_defined(arguments[i], [&](const at::Tensor& tensor) { look(window, tensor, kind.writes[i] != 0); });
  }

  const OperatorKind& kind;
  TracedOperator its;
  std::vector<int> storages;                            // that are traced, among the arguments
  std::vector<c10::StorageImpl*> others;                // that are not
  std::vector<c10::StorageImpl*> written;               // of these
  bool plain = true;                                    // nothing keeps it from running again
  bool kept = !kind.of_library;                         // others may read its arguments later
  std::vector<std::pair<int, std::size_t>> overwrites;  // bytes that it writes of a storage

 private:
  void look(ActivationWindow& window, const at::Tensor& tensor, bool writes) {
    if (!strided(tensor)) {
      plain = false;
      kept = true;
      return;
    }
    if (const auto number = window.number_of(tensor)) {
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
    others.push_back(storage_impl(tensor));
    if (!writes) return;
    written.push_back(others.back());
    plain = plain && kind.statistics;
  }
};

ActivationWindow::ActivationWindow(ActivationRecorder& memory, ParametersAgain& parameters, std::int64_t budget,
                                   std::vector<std::shared_ptr<PlannedMicroBatch>> plans)
    : Residue(recorded_, budget, trials.seed), memory_(memory), parameters_(parameters), candidates_(std::move(plans)) {
  if (!candidates_.empty()) following_ = candidates_.front();
}

ActivationWindow::~ActivationWindow() = default;

ActivationWindow* ActivationWindow::of(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.unsafeGetTensorImpl()->has_storage()) return nullptr;
  const c10::DataPtr& pointer = storage_impl(tensor)->_mutable_data_ptr_no_checks();
  return pointer.get_deleter() == &end ? static_cast<const Tag*>(pointer.get_context())->window.get() : nullptr;
}

std::optional<int> ActivationWindow::number_of(const at::Tensor& tensor) const {
  if (!tensor.unsafeGetTensorImpl()->has_storage()) return {};
  const c10::DataPtr& pointer = storage_impl(tensor)->_mutable_data_ptr_no_checks();
  if (pointer.get_deleter() != &end) return {};
  const Tag& tag = *static_cast<const Tag*>(pointer.get_context());
  return tag.window.get() == this ? std::optional(tag.number) : std::nullopt;
}

// ---- Storages that end
// -----------------------------------------------------------------------------------------------

void ActivationWindow::end(void* context) {
  const std::unique_ptr<Tag> tag(static_cast<Tag*>(context));
  tag->window->ended(tag->number);
}

void ActivationWindow::ended(int number) {
  if (std::this_thread::get_id() != thread_) {
    const std::lock_guard lock(mutex_);
    ended_elsewhere_.push_back(number);
    any_ended_elsewhere_ = true;
    return;
  }
  Paged& its = paged(number);
  its.storage.reset();
  if (closed_) return its.memory.clear();
  if (!state(number).present) --missing_;
  storage(number).death = static_cast<int>(trace_.operators.size());
  die(number);
}

void ActivationWindow::bury() {
  if (!any_ended_elsewhere_) return;
  std::vector<int> numbers;
  {
    const std::lock_guard lock(mutex_);
    numbers.swap(ended_elsewhere_);
    any_ended_elsewhere_ = false;
  }
  for (const int number : numbers) ended(number);
}

// ---- Memory that goes and comes
// ----------------------------------------------------------------------------------------

void ActivationWindow::dropped(int number) {
  Paged& its = paged(number);
  if (!following_ || !following_->proven) its.digest = digest_of(its.memory.get(), its.checked);
  if (const auto storage = its.storage.lock()) {
    void* const tag = storage->_mutable_data_ptr_no_checks().get_context();
    storage->set_data_ptr(c10::DataPtr(nullptr, tag, &end, storage->device())).release_context();
    storage->release_data_and_set_meta_custom_data_ptr_error_msg_(
        "zero: an activation that was dropped to keep within the activation budget is read without an operator (" +
        std::string(kKeep) + ")");
  }
  ++missing_;
  if (running_) running_->before -= memory_.bytes_of(its.memory.get());
  its.memory.clear();
}

void ActivationWindow::give(int number, const c10::Storage& from) {
  Paged& its = paged(number);
  if (from.nbytes() != its.bytes) throw StateError("an activation came back in another size", kKeep);
  its.memory = from.unsafeGetStorageImpl()->set_data_ptr(c10::DataPtr(nullptr, from.device()));
  if (const auto storage = its.storage.lock()) {
    void* const tag = storage->_mutable_data_ptr_no_checks().get_context();
    storage->set_data_ptr(c10::DataPtr(its.memory.get(), tag, &end, its.memory.device())).release_context();
    storage->clear_data_ptr_access_error_msg_();
  }
  --missing_;
  check(number);
}

void ActivationWindow::check(int number) {
  const auto digest = std::exchange(paged(number).digest, std::nullopt);
  if (!digest || *digest == digest_of(paged(number).memory.get(), paged(number).checked)) return;
  throw StateError("an activation of " + std::to_string(storage(number).bytes) +
                       " bytes that was dropped came back with other " +
                       "values: " + describe(storage(number).writers.back()) +
                       " made it, and something has written it past operators, or it does not repeat",
                   kKeep);
}

void ActivationWindow::made(int number, Key version, bool in_place) {
  if (in_place)
    give(number, made_);
  else
    apart_[version] = made_;
  made_ = {};
}

c10::Storage ActivationWindow::storage_for(const StorageUse& use, int target) {
  if (use.storage == target) return made_;
  Paged& its = paged(use.storage);
  c10::Storage found;
  if (const auto at = apart_.find(key(use.storage, use.version)); at != apart_.end())
    found = at->second;
  else if (auto strong = its.storage.lock())
    found = c10::Storage(std::move(strong));
  else  // it is held
    found = c10::Storage(c10::Storage::use_byte_size_t(), its.bytes,
                         c10::DataPtr(its.memory.get(), its.memory.device()), nullptr, /*resizable=*/false);
  return use.written ? copy_of(found) : found;
}

void ActivationWindow::recompute(int number, int target, bool first) {
  const TracedOperator& its = op(number);
  std::vector<c10::Storage> storages;
  for (std::size_t i = 0; i < its.uses.size(); ++i) {
    const auto before = std::find_if(its.uses.begin(), its.uses.begin() + static_cast<std::ptrdiff_t>(i),
                                     [&](const StorageUse& use) { return use.storage == its.uses[i].storage; });
    const auto same = static_cast<std::size_t>(before - its.uses.begin());
    StorageUse use = its.uses[i];
    use.written = use.written || std::any_of(its.uses.begin(), its.uses.end(), [&](const StorageUse& each) {
                    return each.storage == use.storage && each.written;
                  });
    storages.push_back(same < i ? storages[same] : storage_for(use, first ? -1 : target));
  }
  RecordedCall& call = *calls_[static_cast<std::size_t>(number)];
  page_in(call.arguments());
  if (trials.recomputed != nullptr) ++*trials.recomputed;
  const torch::jit::Stack results = call.run(storages);
  if (!first) return;
  std::vector<c10::Storage> made;
  for (const c10::IValue& value : results)
    for_each_defined(value, [&](const at::Tensor& tensor) { made.push_back(tensor.storage()); });
  for (std::size_t i = 0; i < its.results.size(); ++i) {
    const int result = its.results[i];
    const c10::Storage& from = made[static_cast<std::size_t>(call.places()[i])];
    if (result == target)
      made_ = from;
    else if (const State& each = state(result); each.live && !each.present && each.version == 1)
      give(result, from);
  }
}

// Peers may have dropped other activations, and not come to it.
void ActivationWindow::page_in(ParametersAgain& parameters, std::span<const c10::IValue> arguments) {
  paged_in_ = true;
  const bool before = std::exchange(paging_in_, true);
  try {
    parameters.page_in(arguments);
  } catch (...) {
    paging_in_ = before;
    throw;
  }
  paging_in_ = before;
}

void ActivationWindow::make_room(std::int64_t bytes) {
  if (keeping_all_) return;
  if (!following_) return evict(bytes);
  const auto& drops = following_->plan.drops;
  if (static_cast<std::size_t>(executions()) >= drops.size()) return;
  for (const int number : drops[static_cast<std::size_t>(executions())])
    if (const State& each = state(number); each.live && each.present && each.pins == 0) drop(number);
}

void ActivationWindow::allocating(std::int64_t bytes) {
  if (closed_ || std::this_thread::get_id() != thread_) return;
  if (!following_ && !keeping_all_) evict(bytes);
  need(bytes);
  if (running_) running_->most = std::max(running_->most, held() + bytes - running_->before);
}

// As long as nothing is known of when units are there, what has to be gathered for goes last.
std::int64_t ActivationWindow::price(const TracedOperator& op) const {
  constexpr std::int64_t kOfAGather = 100;
  return op.work * (op.units.empty() ? 1 : kOfAGather);
}

bool ActivationWindow::gives_up() {
  constexpr std::int64_t kAtLeast = 50;
  return recomputations() > 4 * static_cast<std::int64_t>(trace_.operators.size()) + kAtLeast;
}

// ---- What cannot be run again
// ------------------------------------------------------------------------------------------

// These operators from now on: what they are needed for is made before.
void ActivationWindow::stale(const std::vector<int>& operators) {
  if (operators.empty()) return;
  keeping_all_ = true;  // or more of their results might go meanwhile
  for (const int number : missing_results(operators)) {
    bring({number});
    unpin({number});
  }
  keeping_all_ = false;
  for (const int number : operators) op(number).again = false;
}

void ActivationWindow::before_write(const c10::StorageImpl* storage) {
  const auto readers = outside_.find(storage);
  if (readers == outside_.end()) return;
  std::vector<int> operators;
  for (const int number : readers->second)
    if (op(number).again) operators.push_back(number);
  outside_.erase(readers);
  stale(operators);
}

// ---- Plans
// ---------------------------------------------------------------------------------------------------------------

void ActivationWindow::stop_following() {
  following_ = nullptr;
  candidates_.clear();
}

void ActivationWindow::follow(std::uint64_t identity, int at) {
  if (!following_) return;
  const auto number = static_cast<std::size_t>(at);
  std::erase_if(candidates_, [&](const auto& each) {
    return number >= each->trace.operators.size() || each->trace.operators[number].identity != identity;
  });
  if (std::find(candidates_.begin(), candidates_.end(), following_) != candidates_.end()) return;
  const auto nothing_dropped = [&](const ActivationPlan& plan) {
    const auto until = std::min(plan.drops.size(), static_cast<std::size_t>(executions()) + 1);
    return std::all_of(plan.drops.begin(), plan.drops.begin() + static_cast<std::ptrdiff_t>(until),
                       [](const std::vector<int>& drops) { return drops.empty(); });
  };
  if (candidates_.empty() || recomputations() > 0 || !nothing_dropped(following_->plan) ||
      !nothing_dropped(candidates_.front()->plan))
    return stop_following();
  following_ = candidates_.front();
}

bool ActivationWindow::kept_to_plan() const {
  return following_ && trace_.operators.size() == following_->trace.operators.size() &&
         executions() == following_->plan.executions;
}

std::string ActivationWindow::describe(int number) const {
  const TracedOperator& its = op(number);
  return "operator " + std::to_string(number) + " of the micro-batch (" +
         handles_[static_cast<std::size_t>(number)].operator_name().name + ")" +
         (its.backward ? ", in backward" : ", in forward");
}

// ---- Operators
// -------------------------------------------------------------------------------------------------------------

void ActivationWindow::run(const c10::OperatorHandle& handle, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const OperatorKind& kind = OperatorKind::of(handle);
  const std::size_t count = handle.schema().arguments().size();
  const std::span<const c10::IValue> arguments{stack->data() + (stack->size() - count), count};
  if (kind.composite || (kind.random && kind.generator < 0 && !draws_nothing(handle, arguments)))
    return handle.redispatchBoxed(keys, stack);
  const c10::impl::ExcludeDispatchKeyGuard off(kBelowKey);
  if (kind.views) return handle.redispatchBoxed(keys, stack);
  bury();
  Call call(*this, handle, arguments);
  const int number = now_ = static_cast<int>(trace_.operators.size());
  call.its.backward = torch::autograd::get_current_graph_task_id() != -1;
  if (number > 0)
    call.its.identity = derived(call.its.identity, static_cast<std::uint64_t>(op(number - 1).result_bytes));
  follow(call.its.identity, number);
  prepare(call, handle, keys, arguments);
  execute(call, handle, keys, stack);
}

void ActivationWindow::prepare(Call& call, const c10::OperatorHandle& handle, c10::DispatchKeySet keys,
                               std::span<const c10::IValue> arguments) {
  bool recorded = !call.its.backward || at::GradMode::is_enabled();
  if (following_ && candidates_.size() == 1 && now_ >= kTellTale) {
    const bool needed = following_->plan.needed[static_cast<std::size_t>(now_)] != 0;
    recorded_all_ = recorded_all_ && (needed || !recorded);
    recorded = recorded && needed;
  }
  for (const c10::StorageImpl* const written : call.written) before_write(written);
  if (call.kept)
    for (const int each : call.storages) Residue::keep(each);
  const auto units = parameters_.units(arguments);
  call.its.again = recorded && call.plain && call.kind.repeatable && units;
  if (units) call.its.units = *units;
  if (!following_) stale(read_before_overwriting(call));
  bring(call.storages);
  if (paged_in_) page_in(arguments);  // others were, since the fallback above has seen to it
  make_room(0);
  std::unique_ptr<RecordedCall> again;
  if (call.its.again) {
    for (const c10::StorageImpl* const each : call.others) outside_[each].push_back(now_);
    again = std::make_unique<RecordedCall>(handle, keys, arguments,
                                           [this](const at::Tensor& tensor) { return number_of(tensor).has_value(); });
  }
  call.its.other_bytes = held() - bytes_;
  trace_.operators.push_back(std::move(call.its));
  calls_.push_back(std::move(again));
  handles_.push_back(handle);
}

// Readers of what it writes, where the version that they have read cannot be made again.
std::vector<int> ActivationWindow::read_before_overwriting(const Call& call) {
  std::vector<int> readers;
  for (const StorageUse& use : call.its.uses)
    if (use.written && !feasible(use.storage, use.version))
      for (const int reader : storage(use.storage).readers)
        if (op(reader).again) add_once(readers, reader);
  return readers;
}

void ActivationWindow::execute(Call& call, const c10::OperatorHandle& handle, c10::DispatchKeySet keys,
                               torch::jit::Stack* stack) {
  const int number = now_;
  running_ = Running{.before = held()};
  const std::int64_t began = nanoseconds_now();
  try {
    handle.redispatchBoxed(keys, stack);
  } catch (...) {
    running_.reset();
    unpin(call.storages);
    op(number).again = false;
    ran();
    throw;
  }
  TracedOperator& its = op(number);
  const std::int64_t took = nanoseconds_now() - began;
  const Running running = *std::exchange(running_, std::nullopt);
  ran();
  written_by(call, number);
  const std::size_t returned = std::min(handle.schema().returns().size(), stack->size());
  if (call.kind.of_library) trace_results({stack->data() + (stack->size() - returned), returned}, call, number);
  its.work =
      (its.result_bytes + bytes_of(call.storages)) / kBytesANanosecond * (call.kind.multiplies ? kOfProducts : 1);
  its.nanoseconds = trials.refuses ? took : its.work;
  its.scratch_bytes = std::max<std::int64_t>(0, running.most - its.result_bytes);
  unpin(call.storages);
  now_ = number + 1;  // what it has made goes before the next one, if it does: till then it may be read by pointer
}

std::int64_t ActivationWindow::bytes_of(const std::vector<int>& storages) const {
  std::int64_t bytes = 0;
  for (const int number : storages) bytes += storage(number).bytes;
  return bytes;
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
  for (const auto& [each, bytes] : call.overwrites) {
    Paged& its = paged(each);
    if (its.unwritten == 0) continue;
    its.unwritten -= std::min(its.unwritten, bytes);
    if (its.unwritten == 0) storage(each).whole_from = state(each).version;
  }
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
      if (number_of(tensor)) return;
      c10::StorageImpl* const storage = storage_impl(tensor);
      const c10::DataPtr& pointer = storage->_mutable_data_ptr_no_checks();
      const auto bytes = static_cast<std::int64_t>(storage->nbytes());
      if (memory_.bytes_of(pointer.get()) == 0 || bytes < trials.traced_from ||
          pointer.get_deleter() != c10::GetAllocator(storage->device_type())->raw_deleter())
        return;
      if (std::find(call.others.begin(), call.others.end(), storage) != call.others.end()) return;
      trace(*storage, bytes, number, call.kind.allocates);
      paged_.back().checked = checked_bytes(tensor);
      if (calls_[static_cast<std::size_t>(number)]) calls_[static_cast<std::size_t>(number)]->add_place(place);
    });
}

void ActivationWindow::trace(c10::StorageImpl& storage, std::int64_t bytes, int number, bool allocated) {
  const int its = static_cast<int>(trace_.storages.size());
  trace_.storages.push_back({.bytes = bytes, .writers = {number}});
  if (allocated) trace_.storages.back().whole_from = TracedStorage::kNever;
  Paged& paged = paged_.emplace_back();
  paged.storage = c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(&storage);
  paged.bytes = storage.nbytes();
  paged.unwritten = allocated ? paged.bytes : 0;
  const c10::DataPtr& pointer = storage._mutable_data_ptr_no_checks();
  paged.memory =
      storage.set_data_ptr(c10::DataPtr(pointer.get(), new Tag{shared_from_this(), its}, &end, pointer.device()));
  op(number).results.push_back(its);
  op(number).result_bytes += bytes;
  born(its);
}

void ActivationWindow::touch(const at::Tensor& tensor) {
  const auto number = number_of(tensor);
  if (!number || state(*number).present) return;
  require_thread();
  bury();
  stop_following();
  const c10::impl::ExcludeDispatchKeyGuard off(kBelowKey);
  bring({*number});
  unpin({*number});
}

void ActivationWindow::require_thread() const {
  if (std::this_thread::get_id() != thread_)
    throw StateError("an activation that was dropped to keep within the activation budget is read on another thread",
                     kKeep);
}

void ActivationWindow::keep(const at::Tensor& tensor) {
  const auto number = number_of(tensor);
  if (!number) return;
  if (!state(*number).present) require_thread();
  const c10::impl::ExcludeDispatchKeyGuard off(kBelowKey);
  Residue::keep(*number);
}

// ---- The end
// -----------------------------------------------------------------------------------------------------------------

void ActivationWindow::close() {
  if (closed_) return;
  bury();
  stop_following();
  keeping_all_ = true;
  const c10::impl::ExcludeDispatchKeyGuard off(kBelowKey);
  for (std::size_t i = 0; i < paged_.size(); ++i) {
    const int number = static_cast<int>(i);
    if (!state(number).live || state(number).present) continue;
    bring({number});
    unpin({number});
  }
  abandon();
}

void ActivationWindow::abandon() noexcept {
  closed_ = true;
  for (Paged& its : paged_) {
    if (const auto storage = its.storage.lock()) {
      const std::unique_ptr<Tag> tag(static_cast<Tag*>(storage->_mutable_data_ptr_no_checks().get_context()));
      storage->set_data_ptr(std::move(its.memory)).release_context();
    }
    its.storage.reset();
    its.memory.clear();
  }
  calls_.clear();
  apart_.clear();
}

}  // namespace zero
