#include "partition/whereabouts.h"

namespace zero {
namespace {

// So long a way back is never worth it.
constexpr int kMostVersions = 400;
// Of running an operator again, whatever it computes.
constexpr std::int64_t kOverhead = 1000;

}  // namespace

std::int64_t Whereabouts::cost(int storage) {
  const int when = needed_from(storage);
  begin_walk();
  int left = kMostVersions;
  return cost_of(storage, state(storage).version, /*first=*/true, when, left);
}

std::int64_t Whereabouts::least_cost(int number) const {
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

std::int64_t Whereabouts::cost_of(int made, int version, bool first, int when, int& left) {
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

bool Whereabouts::feasible(int storage, int version) {
  begin_walk();
  int left = INT_MAX;
  return cost_of(storage, version, /*first=*/true, kAnyTime, left) >= 0;
}

// All of it, though half of it is over then: what is foreseen is that it comes back.
std::int64_t Whereabouts::price_to_store(int number) const {
  return kOverhead + static_cast<std::int64_t>(way_.nanoseconds_a_byte * static_cast<double>(storage(number).bytes));
}

// Puts those of its readers, before now, that can be run again into what is walked over.
void Whereabouts::walk_readers(int number) {
  for (const int reader : storage(number).readers) {
    if (reader >= now_) break;
    if (op(reader).again) walk_.operators.push_back(reader);
  }
}

// Whether what is missing is made of the origin.
bool Whereabouts::comes_of(int missing, const Origin& origin) {
  origins_.begin(trace_.storages.size());
  return version_comes_of(missing, state(missing).version, origin);
}

bool Whereabouts::version_comes_of(int made, int version, const Origin& origin) {
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
void Whereabouts::walk_missing(const Visit& visit) {
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

bool Whereabouts::needed(int number) {
  if (alive_.missing == 0) return false;
  walk_.operators.clear();
  walk_readers(number);
  bool any = false;
  walk_missing([&](int missing) { return any = comes_of(missing, {.storage = number}); });
  return any;
}

std::vector<int> Whereabouts::missing_of(int number) {
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
std::vector<int> Whereabouts::missing_results(const std::vector<int>& operators) {
  std::vector<int> missing;
  walk_.operators = operators;
  walk_missing([&](int number) {
    if (comes_of(number, {.operators = operators})) missing.push_back(number);
    return false;
  });
  return missing;
}

}  // namespace zero
