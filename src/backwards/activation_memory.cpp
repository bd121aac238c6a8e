#include "backwards/activation_memory.h"

#include <ATen/Functions.h>
#include <ATen/core/LegacyTypeDispatch.h>

#include <algorithm>
#include <utility>

#include "backwards/arguments.h"
#include "backwards/unwatched.h"
#include "base/restore.h"
#include "zero/error.h"

namespace zero {
namespace {

ActivationTrials trials;

c10::Storage copy_of(const c10::Storage& from) {
  const Unwatched unwatched;
  const at::AutoDispatchBelowADInplaceOrView below;
  const auto bytes = at::TensorOptions(from.device()).dtype(at::kByte);
  return at::empty({0}, bytes).set_(from).clone().storage();
}

}  // namespace

void set_activation_trials(const ActivationTrials& given) {
  trials = given;
}

const ActivationTrials& activation_trials() {
  return trials;
}

ActivationMemory::ActivationMemory(ActivationWindow& window, const ActivationSetting& setting,
                                   FollowedPlan::Plans plans)
    : Eviction(recorded_, setting.budget, trials.seed, setting.store != nullptr ? setting.store->way() : StoredWay()),
      memory_(setting.memory),
      parameters_(setting.parameters),
      observer_(setting.observer),
      stored_(setting.store),
      plan_(std::move(plans)),
      storages_(window) {
  recorded_.operators.reserve(setting.usual_operators);
  calls_.reserve(setting.usual_operators);
}

// -- Memory that goes and comes.

void ActivationMemory::book() {
  if (!memory_.observes()) memory_.hold(micro_batch_, bytes_);
}

void ActivationMemory::give(int number, const c10::Storage& from) {
  if (!storages_.give(number, from)) came_otherwise(number);
}

void ActivationMemory::came_otherwise(int number) const {
  throw StateError(
      "an activation of " + std::to_string(storage(number).bytes) +
          " bytes that was dropped came back with other values: " + describe_operator(storage(number).writers.back()) +
          " made it, and something has written it past operators, or it does not repeat",
      TracedStorages::kKeep);
}

void ActivationMemory::made(int number, Key version, bool in_place) {
  if (in_place) {
    give(number, made_);
  } else {
    if (version == key(number, state(number).version) && !storages_.alike(number, made_)) came_otherwise(number);
    apart_[version] = made_;
  }
  made_ = {};
}

c10::Storage ActivationMemory::storage_for(const StorageUse& use, int target) {
  if (use.storage == target) return made_;
  const auto at = apart_.find(key(use.storage, use.version));
  const c10::Storage found = at != apart_.end() ? at->second : storages_.get(use.storage);
  return use.written ? copy_of(found) : found;
}

void ActivationMemory::recompute(int number, int target, bool first) {
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
  const ActivityScope acting(observer_, Activity::recompute);
  RecordedCall& call = *again(number);
  page_in(parameters_, call.arguments());
  if (trials.recomputed != nullptr) ++*trials.recomputed;
  const torch::jit::Stack results = call.run(storages);
  book();
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
void ActivationMemory::page_in(ParametersAgain& parameters, std::span<const c10::IValue> arguments) {
  paged_in_ = true;
  const Restore paging(paging_in_, true);
  parameters.page_in(arguments);
}

void ActivationMemory::make_room(std::int64_t bytes) {
  if (keeping_all_) return;
  if (plan_) {
    for (const auto& [number, stores] : plan_.drops(executions())) drop_as_planned(number, stores);
    begin_moves();
  }
  keep_within_budget(bytes);
}

// The plan knew nothing of what makes it too much: storages that end later than was foretold.
void ActivationMemory::keep_within_budget(std::int64_t bytes) {
  if (keeping_all_ || held() + bytes <= budget_) return;
  plan_.leave();
  evict(bytes);
}

StorageValues ActivationMemory::values_of(int number) const {
  return {storages_.memory(number), storage(number).bytes, storages_.dtype(number)};
}

// What that takes is not evicted for: it would come back here.
void ActivationMemory::store(int number) {
  const Restore keeping(keeping_all_, true);
  stored_.begin(number, state(number).version, values_of(number));
}

void ActivationMemory::begin_fetch(int number) {
  const Restore keeping(keeping_all_, true);
  stored_.fetch(number);
}

void ActivationMemory::fetch(int number) {
  const ActivityScope acting(observer_, Activity::fetch);
  begin_fetch(number);
  made_ = stored_.fetched(number);
}

void ActivationMemory::freed(int number) {
  stored_.discard(number);
  if (running_) running_->before -= memory_.bytes_of(storages_.memory(number));
  storages_.free(number);
}

void ActivationMemory::dropped(int number, bool stores) {
  if (!state(number).live) return freed(number);
  if (stores) {
    const ActivityScope acting(observer_, Activity::store);
    store(number);
    stored_.settle(number);
  } else {
    stored_.discard(number);  // what was begun of it would go on with memory that is gone
  }
  if (running_) running_->before -= memory_.bytes_of(storages_.memory(number));
  const bool checks = stores ? stored_.exact() : !plan_.proven();  // a disk may fail at any time
  storages_.drop(number, checks && memory_.observes());
  book();
}

void ActivationMemory::begin_moves() {
  for (const auto& [number, fetches] : plan_.moves(executions())) {
    if (!known(number)) continue;
    const State& its = state(number);
    if (fetches && its.stored) begin_fetch(number);
    if (!fetches && its.present) store(number);
  }
}

// As long as nothing is known of when units are there, what has to be gathered for goes last.
std::int64_t ActivationMemory::price(const TracedOperator& op) const {
  constexpr std::int64_t kOfAGather = 100;
  return op.work * (op.units.empty() ? 1 : kOfAGather);
}

bool ActivationMemory::gives_up() {
  constexpr std::int64_t kAtLeast = 50;
  return executions() > 5 * static_cast<std::int64_t>(trace_.operators.size()) + kAtLeast;
}

std::string ActivationMemory::describe_operator(int number) const {
  const TracedOperator& its = op(number);
  return "operator " + std::to_string(number) + " of the micro-batch (" +
         calls_[static_cast<std::size_t>(number)].op.operator_name().name + ")" +
         (its.backward ? ", in backward" : ", in forward");
}

void ActivationMemory::forget_all() noexcept {
  stored_.clear();
  storages_.let_go();
  calls_.clear();
  apart_.clear();
}

}  // namespace zero
