#include "partition/eviction.h"

#include <algorithm>
#include <utility>

namespace zero {
namespace {

// Of a long micro-batch what goes first hardly changes from one execution to the next.
constexpr std::size_t kRankings = 256;

double for_bytes(std::int64_t nanoseconds, std::int64_t bytes) {
  return static_cast<double>(nanoseconds) / static_cast<double>(bytes);
}

}  // namespace

bool Eviction::after(const Candidate& one, const Candidate& other) {
  return std::pair(one.score, one.storage) > std::pair(other.score, other.storage);
}

// Other values than it had are not there for what comes of it, which might be missing.
bool Eviction::may_be_stored(int number) {
  if (!way() || !storage(number).storable()) return false;
  if (way().exact) return true;
  return inexact_next(number) && (!needed(number) || feasible(number, state(number).version));
}

// By which way it costs least for what it frees.
std::optional<Eviction::Candidate> Eviction::candidate(int number) {
  if (!can_go(number)) return {};
  std::optional<Candidate> best;
  if (const std::int64_t again = cost(number); again >= 0)
    best = {chance_() * for_bytes(again, storage(number).bytes), number, /*stores=*/false};
  if (way() && storage(number).storable()) {
    const std::int64_t frees = storage(number).bytes - storage(number).stored_bytes;
    const double stored = chance_() * for_bytes(price_to_store(number), frees);
    if ((!best || stored < best->score) && may_be_stored(number)) best = {stored, number, /*stores=*/true};
  }
  if (best) best->score /= std::pow(distance(number), exponent_);
  return best;
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
  for (const int number : alive().storages)
    if (const auto each = candidate(number)) ranked_.push_back(*each);
  std::ranges::make_heap(ranked_, after);
}

// As far as others that went since let them.
void Eviction::evict_ranked(std::int64_t bytes) {
  while (held() + bytes > budget_ && !ranked_.empty()) {
    std::ranges::pop_heap(ranked_, after);
    const Candidate first = ranked_.back();
    ranked_.pop_back();
    if (can_go(first.storage) && (first.stores ? may_be_stored(first.storage) : cost(first.storage) >= 0))
      drop(first.storage, first.stores);
  }
}

}  // namespace zero
