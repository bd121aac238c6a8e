#include "partition/residue.h"

#include <algorithm>
#include <string>

#include "zero/error.h"

namespace zero {
namespace {

// So long a way back is never worth it.
constexpr int kMostVersions = 400;
// Of running an operator again, whatever it computes.
constexpr std::int64_t kOverhead = 1000;

}  // namespace

std::int64_t Residue::cost(int storage) {
  const int when = needed_from(storage);
  begin_walk();
  int left = kMostVersions;
  return cost_of(storage, state(storage).version, /*first=*/true, when, left);
}

std::int64_t Residue::least_cost(int number) const {
  const int version = state(number).version;
  if (version < storage(number).whole_from) return kImpossible;
  std::int64_t sum = 0;
  for (int k = 0; k < version; ++k) {
    const TracedOperator& its = op(storage(number).writers[static_cast<std::size_t>(k)]);
    if (!its.again) return kImpossible;
    sum += price(its) + kOverhead;
  }
  return sum;
}

std::int64_t Residue::cost_of(int made, int version, bool first, int when, int& left) {
  if (const State& there = state(made); !first && there.version == version) {
    if (there.present) return 0;
    if (there.stored && way_.exact) return price_to_store(made);
  }
  const int from = walk_.from(made, version);
  const TracedStorage& its = storage(made);
  if (--left < 0 || version < its.whole_from) return kImpossible;
  std::int64_t sum = 0;
  for (int k = from; k < version; ++k) {
    const int number = its.writers[static_cast<std::size_t>(k)];
    const std::int64_t its_price = op(number).again ? price_at(when, op(number)) : kImpossible;
    if (its_price < 0) return kImpossible;
    sum += its_price + kOverhead;
    for (const StorageUse& use : op(number).uses) {
      if (use.storage == made) continue;
      const std::int64_t more = cost_of(use.storage, use.version, /*first=*/false, when, left);
      if (more < 0) return kImpossible;
      sum += more;
    }
  }
  return sum;
}

bool Residue::feasible(int storage, int version, int when) {
  begin_walk();
  int left = INT_MAX;
  return cost_of(storage, version, /*first=*/true, when, left) >= 0;
}

// All of it, though half of it is over then: what is foreseen is that it comes back.
std::int64_t Residue::price_to_store(int number) const {
  return kOverhead + static_cast<std::int64_t>(way_.nanoseconds_a_byte * static_cast<double>(storage(number).bytes));
}

void Residue::drop(int number, bool stores) {
  state(number).present = false;
  state(number).stored = stores;
  if (!state(number).live)
    std::erase(held_, number);
  else if (!stores)
    ++alive_.missing;
  bytes_ -= storage(number).bytes - (stores ? storage(number).stored_bytes : 0);
  if (stores) ran_.moved += storage(number).bytes;
  dropped(number, stores);
}

void Residue::forget_stored(int number) {
  if (!std::exchange(state(number).stored, false)) return;
  bytes_ -= storage(number).stored_bytes;
  discard(number);
}

// One that lived without.
void Residue::is_there(int number) {
  if (!state(number).stored) {
    --alive_.missing;
    fewer_missing_ = true;
  }
  forget_stored(number);
  came(number);
}

void Residue::keep(int number) {
  storage(number).kept = true;
  bring(std::span(&number, 1));
  unpin(std::span(&number, 1));
}

bool Residue::can_go(int number) const {
  const State& each = state(number);
  if (!each.present || storage(number).kept || each.pins > 0) return false;
  return versions_.empty() || !versions_.contains(key(number, each.version));  // else it has just come for others
}

void Residue::born(int number) {
  if (alive_.storages.size() > 64 && alive_.storages.size() > 2 * alive_.count)
    std::erase_if(alive_.storages, [&](int each) { return !state(each).live; });
  if (!known(number)) states_.resize(static_cast<std::size_t>(number) + 1);
  alive_.storages.push_back(number);
  ++alive_.count;
  state(number) = {.live = true, .present = true, .version = 1, .last_use = now_};
  bytes_ += storage(number).bytes;
}

// Pins what is there, and puts what is not into the order in which it is made, behind what it is made of.
void Residue::require(int needed, int version, bool touched) {
  State& its = state(needed);
  if (its.present && its.version == version) {
    ++its.pins;
    return;
  }
  const auto [at, fresh] = versions_.try_emplace(key(needed, version), Version{needed, version});
  if (!fresh) {
    ++at->second.uses;
    return;
  }
  if (its.stored && its.version == version && (touched || way_.exact)) {
    at->second.fetched = true;
    order_.push_back(key(needed, version));
    return;
  }
  for (int k = 0; k < version; ++k)
    if (const int writer = storage(needed).writers[static_cast<std::size_t>(k)]; !op(writer).again)
      throw StateError("an activation that was dropped cannot be computed again: operator " + std::to_string(writer) +
                           " of the micro-batch",
                       "report this, with the model; train it without an activation budget");
  each_use(needed, 0, version, [&](const StorageUse& use) { require(use.storage, use.version, /*touched=*/false); });
  order_.push_back(key(needed, version));
}

void Residue::release(int number, int version) {
  const auto at = versions_.find(key(number, version));
  if (at == versions_.end() || !at->second.apart) {
    --state(number).pins;
    return;
  }
  if (--at->second.uses > 0) return;
  forgotten(at->first);
  bytes_ -= storage(number).bytes;
  versions_.erase(at);
}

void Residue::run_again(int number, int target, bool first) {
  const TracedOperator& its = op(number);
  std::int64_t bytes = its.scratch_bytes + (first ? its.result_bytes : 0);
  for (const StorageUse& use : its.uses)
    if (use.written && use.storage != target) bytes += storage(use.storage).bytes;  // into a copy
  make_room(bytes);
  need(bytes);
  ++ran_.all;
  ++ran_.again;
  ran_.nanoseconds += its.nanoseconds;
  recompute(number, target, first);
  if (!first) return;
  bytes_ += storage(target).bytes;
  for (const int other : its.results)
    if (State& each = state(other); other != target && each.live && !each.present && each.version == 1) {
      each.present = true;
      bytes_ += storage(other).bytes;
      is_there(other);
    }
}

// It may have come meanwhile, with another result of the operator that made it.
void Residue::make_from_stored(Version& version, Key which) {
  const int number = version.storage;
  State& its = state(number);
  const std::int64_t bytes = storage(number).bytes;
  if (!its.present) {
    if (!its.stored)
      throw StateError("an activation that was stored is gone: number " + std::to_string(number),
                       "report this, with the model; train it without an activation budget");
    make_room(bytes - arrived(number));
    need(bytes - arrived(number));
    ++ran_.all;
    ran_.moved += bytes;
    fetch(number);
    bytes_ += bytes;
    its.present = its.live;
    version.apart = !its.live;
    made(number, which, /*in_place=*/its.live);
    if (its.live) is_there(number);
  }
  if (!its.live) return;
  its.pins += version.uses;
  versions_.erase(which);
}

void Residue::make(Key which) {
  Version& made_now = versions_.at(which);
  if (made_now.fetched) return make_from_stored(made_now, which);
  const int number = made_now.storage, version = made_now.version;
  State& its = state(number);
  const bool in_place = its.live && its.version == version;
  if (!in_place || !its.present) {
    for (int k = 0; k < version; ++k)
      run_again(storage(number).writers[static_cast<std::size_t>(k)], number, /*first=*/k == 0);
    its.present = its.present || in_place;
    made_now.apart = !in_place;
    made(number, which, in_place);
    if (in_place) is_there(number);
  }
  if (in_place) {
    its.pins += made_now.uses;
    versions_.erase(which);
  }
  each_use(number, 0, version, [&](const StorageUse& use) { release(use.storage, use.version); });
}

void Residue::bring(std::span<const int> storages) {
  bool all = true;
  for (const int number : storages) {
    if (state(number).present)
      ++state(number).pins;
    else
      all = false;
  }
  if (all) return;
  order_.clear();
  for (const int number : storages)
    if (!state(number).present) require(number, state(number).version, /*touched=*/true);
  for (std::size_t i = 0; i < order_.size(); ++i) make(order_[i]);
  let_go();
}

void Residue::unpin(std::span<const int> storages) {
  for (const int number : storages) --state(number).pins;
}

// Puts those of its readers, before now, that can be run again into what is walked over.
void Residue::walk_readers(int number) {
  for (const int reader : storage(number).readers) {
    if (reader >= now_) break;
    if (op(reader).again) walk_.operators.push_back(reader);
  }
}

// Whether what is missing is made of the origin.
bool Residue::comes_of(int missing, const Origin& origin) {
  origins_.begin(trace_.storages.size());
  return version_comes_of(missing, state(missing).version, origin);
}

bool Residue::version_comes_of(int made, int version, const Origin& origin) {
  const State& its = state(made);
  if (its.version == version && (its.present || (its.stored && way_.exact))) return made == origin.storage;
  const auto& writers = storage(made).writers;
  for (int k = origins_.from(made, version); k < version; ++k) {
    const int writer = writers[static_cast<std::size_t>(k)];
    if (std::ranges::binary_search(origin.operators, writer)) return true;
    for (const StorageUse& use : op(writer).uses)
      if (use.storage != made && version_comes_of(use.storage, use.version, origin)) return true;
  }
  return false;
}

// Calls visit(storage) for what lives, has lost its memory and may come of `walk_.operators`, until that says true.
template <class Visit>
void Residue::walk_missing(const Visit& visit) {
  begin_walk();
  const auto look = [&](int number) {
    if (!known(number) || walk_.has(number)) return false;
    walk_.from(number, 1);
    const State& its = state(number);
    if (its.live && !its.present && !its.stored && visit(number)) return true;
    if (!((its.present || (its.stored && way_.exact)) && its.version == 1)) walk_readers(number);
    return false;
  };
  while (!walk_.operators.empty()) {
    const int number = walk_.operators.back();
    walk_.operators.pop_back();
    if (std::ranges::any_of(op(number).results, look)) return;
    for (const StorageUse& use : op(number).uses)
      if (use.written && look(use.storage)) return;
  }
}

bool Residue::needed(int number) {
  if (alive_.missing == 0) return false;
  walk_.operators.clear();
  walk_readers(number);
  bool any = false;
  walk_missing([&](int missing) { return any = comes_of(missing, {.storage = number}); });
  return any;
}

std::vector<int> Residue::missing_of(int number) {
  std::vector<int> missing;
  if (alive_.missing == 0) return missing;
  walk_.operators.clear();
  walk_readers(number);
  walk_missing([&](int each) {
    missing.push_back(each);
    return false;
  });
  return missing;
}

// What has lost its memory and comes of these operators.
std::vector<int> Residue::missing_results(const std::vector<int>& operators) {
  std::vector<int> missing;
  walk_.operators = operators;
  walk_missing([&](int number) {
    if (comes_of(number, {.operators = operators})) missing.push_back(number);
    return false;
  });
  return missing;
}

// What was there may go while what is missing comes.
void Residue::stale(const std::vector<int>& operators) {
  if (operators.empty()) return;
  std::vector<int> pinned;
  for (auto missing = missing_results(operators); !missing.empty(); missing = missing_results(operators)) {
    bring(missing);
    pinned.insert(pinned.end(), missing.begin(), missing.end());
  }
  for (const int number : operators) op(number).again = false;
  went_stale_.insert(went_stale_.end(), operators.begin(), operators.end());
  unpin(pinned);
}

void Residue::before_overwriting(const std::vector<StorageUse>& uses) {
  std::vector<int> readers;
  for (const StorageUse& use : uses) {
    if (!use.written || feasible(use.storage, use.version)) continue;
    const auto same = [&](const StorageUse& each) {
      return each.storage == use.storage && each.version == use.version;
    };
    for (const int reader : storage(use.storage).readers) {
      if (reader >= now_) break;
      if (op(reader).again && std::ranges::any_of(op(reader).uses, same)) readers.push_back(reader);
    }
  }
  std::ranges::sort(readers);
  const auto twice = std::ranges::unique(readers);
  readers.erase(twice.begin(), twice.end());
  stale(readers);
}

void Residue::die(int number) {
  State& its = state(number);
  its.live = false;
  --alive_.count;
  if (!its.present && !its.stored) {
    --alive_.missing;
    fewer_missing_ = true;
    return let_go();
  }
  if ((its.present || way_.exact) && needed(number))
    held_.push_back(number);
  else
    free(number);
}

void Residue::free(int number) {
  if (state(number).stored) return forget_stored(number);
  state(number).present = false;
  bytes_ -= storage(number).bytes;
  freed(number);
}

// What is held for nothing any more.
void Residue::let_go() {
  if (!std::exchange(fewer_missing_, false)) return;
  std::erase_if(held_, [&](int number) {
    if (state(number).pins > 0 || needed(number)) return false;
    free(number);
    return true;
  });
}

}  // namespace zero
