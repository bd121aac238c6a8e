#include "partition/accumulation_order.h"

#include <algorithm>
#include <bit>

#include "base/sum_tree.h"
#include "partition/routes.h"
#include "zero/estimate.h"
#include "zero/plan.h"

namespace zero {
namespace {

// Of the leaves from `begin` to any of the next `leaves`, but the last of all: nodes grow up to a leaf at a multiple of
// some 2^h, and get smaller behind it, down to one leaf each where there is room for all of them.
int most_nodes_from(std::int64_t begin, std::int64_t leaves, std::int64_t all) {
  const std::int64_t last = std::min(begin + leaves, all - 1);
  int most = 0;
  for (int h = 0; (std::int64_t{1} << h) <= last; ++h) {
    const std::int64_t length = std::int64_t{1} << h, middle = ((begin >> h) | 1) << h;
    if (((begin >> h) & 1) != 0 || middle > last) continue;
    const auto growing = static_cast<std::uint64_t>(length - begin % length);
    const auto room = static_cast<std::uint64_t>(std::min(last - middle, length - 1));
    most = std::max(most, std::popcount(growing) + static_cast<int>(std::bit_width(room + 1)) - 1);
  }
  return most;
}

}  // namespace

AccumulationOrder::AccumulationOrder(const Plan& plan, int ranks, int rank)
    : plan_(plan), ranks_(ranks), rank_(rank), reduces_each_(Routes(plan).reduces_each()) {}

bool AccumulationOrder::tree() const {
  return plan_.reproducible() && plan_.accumulate() > 1;
}

std::int64_t AccumulationOrder::all() const {
  return std::int64_t{ranks_} * plan_.accumulate();
}

std::int64_t AccumulationOrder::begin() const {
  return reduces_each_ ? 0 : std::int64_t{rank_} * plan_.accumulate();
}

std::int64_t AccumulationOrder::end(int micro) const {
  return begin() + std::int64_t{micro} * (reduces_each_ ? ranks_ : 1);
}

Leaves AccumulationOrder::reduced(int micro) const {
  if (!tree()) return {0, 1, ranks_};
  if (reduces_each_) return {end(micro), 1, all()};
  return {0, plan_.accumulate(), all()};
}

std::vector<AccumulateStep> AccumulationOrder::steps(int micro) const {
  if (!tree()) return {micro == 0 ? AccumulateStep{} : AccumulateStep{{0}, 0}};
  std::vector<AccumulateStep> steps;
  for (const LeafRange& each : largest_nodes({end(micro), end(micro + 1)}, all())) {
    const auto waiting = static_cast<int>(largest_nodes({begin(), each.begin}, all()).size());
    AccumulateStep step{{}, static_cast<int>(largest_nodes({begin(), each.end}, all()).size()) - 1};
    for (int source = waiting - 1; source >= step.target; --source) step.sources.push_back(source);
    steps.push_back(std::move(step));
  }
  return steps;
}

int AccumulationOrder::levels() const {
  if (!tree()) return 1;
  if (!reduces_each_) return std::max(most_nodes_from(begin(), plan_.accumulate(), all()), left());
  int levels = 1;
  for (int micro = 0; micro < plan_.accumulate(); ++micro)
    for (const LeafRange& each : largest_nodes({end(micro), end(micro + 1)}, all()))
      levels = std::max(levels, count_nodes({0, each.end}, all()));
  return levels;
}

int AccumulationOrder::left() const {
  return tree() && !reduces_each_ ? count_nodes({begin(), end(plan_.accumulate())}, all()) : 1;
}

bool AccumulationOrder::alike() const {
  return !tree() || std::has_single_bit(static_cast<unsigned>(ranks_));
}

SumsOfStep sums_of_step(const Plan& plan, int ranks) {
  const AccumulationOrder order(plan, ranks, 0);
  const int micro_batches = plan.accumulate();
  SumsOfStep sums{order.levels(), order.left(), 0, micro_batches};
  if (Routes(plan).reduces_each()) {
    sums.added = 0;
    for (int micro = 0; micro < micro_batches; ++micro) sums.added += GroupSum(order.reduced(micro), ranks).sums();
  } else if (plan.reproducible()) {
    // Where ranks begin in the tree is the same again after so many.
    const auto turn = static_cast<int>(std::bit_ceil(static_cast<unsigned>(micro_batches)) >>
                                       std::countr_zero(static_cast<unsigned>(micro_batches)));
    int least = sums.left;
    for (int rank = 1; rank < ranks; rank = rank < turn ? rank + 1 : std::max(rank + 1, ranks - 1)) {
      const AccumulationOrder of_rank(plan, ranks, rank);
      sums.levels = std::max(sums.levels, of_rank.levels());
      sums.left = std::max(sums.left, of_rank.left());
      if (of_rank.left() < least) {
        least = of_rank.left();
        sums.least = rank;
      }
    }
  }
  sums.joined = sums.added - sums.left;
  return sums;
}

int accumulation_levels(const Plan& plan, int ranks) {
  return sums_of_step(plan, ranks).levels;
}

std::int64_t micro_batch_index(const Plan& plan, int ranks, int rank, int micro) {
  const int slot = micro % plan.accumulate();
  if (Routes(plan).reduces_each()) return std::int64_t{slot} * ranks + rank;
  return std::int64_t{rank} * plan.accumulate() + slot;
}

}  // namespace zero
