#include "partition/eviction.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace zero {
namespace {

// Of a long micro-batch what goes first hardly changes from one execution to the next.
constexpr std::size_t kRankings = 256;

}  // namespace

bool Eviction::after(const Candidate& one, const Candidate& other) {
  return std::pair(one.score, one.storage) > std::pair(other.score, other.storage);
}

// Other values than it had are not there for what comes of it, which might be missing.
bool Eviction::may_be_stored(int number) {
  if (!storable(number)) return false;
  if (way().exact) return true;
  return inexact_next(number) && (!needed(number) || feasible(number, state(number).version));
}

// Of what that frees.
double Eviction::for_bytes(std::int64_t nanoseconds, int number, bool stores) const {
  const std::int64_t frees = storage(number).bytes - (stores ? storage(number).stored_bytes : 0);
  return static_cast<double>(nanoseconds) / static_cast<double>(frees);
}

// By what its own operators cost: of most that can go nobody asks more.
void Eviction::consider(int number) {
  if (!can_go(number)) return;
  const bool stores = storable(number);
  const std::int64_t least = least_cost(number);
  if (least < 0 && !stores) return;
  Candidate each{.score = 0, .storage = number, .chance_again = chance_(), .chance_stored = stores ? chance_() : 1};
  const double again = each.chance_again * for_bytes(least, number, false);
  const double stored = stores ? each.chance_stored * for_bytes(price_to_store(number), number, true) : again;
  each.score = (least < 0 ? stored : std::min(again, stored)) / std::pow(distance(number), exponent_);
  ranked_.push_back(each);
}

// By which way it costs least for what it frees; false where it cannot go.
bool Eviction::knows(Candidate& each) {
  const int number = each.storage;
  if (!can_go(number)) return false;
  std::optional<double> score;
  if (const std::int64_t again = cost(number); again >= 0) score = each.chance_again * for_bytes(again, number, false);
  if (storable(number)) {
    const double stored = each.chance_stored * for_bytes(price_to_store(number), number, true);
    each.stores = (!score || stored < *score) && may_be_stored(number);
    if (each.stores) score = stored;
  }
  if (score) each.score = *score / std::pow(distance(number), exponent_);
  return score.has_value();
}

void Eviction::evict(std::int64_t bytes) {
  if (held() + bytes <= budget_ || gives_up()) return;
  const bool fresh = executions() >= ranked_until_;
  if (fresh) rank();
  evict_ranked(bytes);
  if (fresh || held() + bytes <= budget_) return;
  rank();
  evict_ranked(bytes);
}

// All that can go.
void Eviction::rank() {
  ranked_until_ = executions() + static_cast<std::int64_t>(trace_.operators.size() / kRankings);
  ranked_.clear();
  for (const int number : alive().storages) consider(number);
  for (const int number : held_dead()) consider(number);
  std::ranges::make_heap(ranked_, after);
}

// As far as others that went since let them.
void Eviction::evict_ranked(std::int64_t bytes) {
  while (held() + bytes > budget_ && !ranked_.empty()) {
    std::ranges::pop_heap(ranked_, after);
    Candidate& first = ranked_.back();
    const bool was_known = std::exchange(first.known, true);
    if (!was_known && knows(first)) {
      std::ranges::push_heap(ranked_, after);
      continue;
    }
    const int number = first.storage;
    const bool stores = first.stores;
    ranked_.pop_back();
    if (was_known && can_go(number) && (stores ? may_be_stored(number) : cost(number) >= 0)) drop(number, stores);
  }
}

}  // namespace zero
