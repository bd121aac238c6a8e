#include "partition/residue.h"

#include <algorithm>
#include <string>

#include "zero/error.h"

namespace zero {

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

void Residue::drop_as_planned(int number, bool stores) {
  if (can_go(number) && (stores ? state(number).live : feasible(number, state(number).version))) drop(number, stores);
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
  if (!known(number)) return false;  // it is not born yet
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
  if (its.stored && its.version == version && (touched || way().exact)) {
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
  reach(bytes);
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
    reach(bytes - arrived(number));
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

void Residue::before_overwriting(std::span<const StorageUse> uses) {
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
  readers.erase(std::unique(readers.begin(), readers.end()), readers.end());
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
  if ((its.present || way().exact) && needed(number))
    held_.push_back(number);
  else
    bury(number);
}

void Residue::bury(int number) {
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
    bury(number);
    return true;
  });
}

}  // namespace zero
