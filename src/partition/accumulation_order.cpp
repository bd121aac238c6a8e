#include "partition/accumulation_order.h"

#include <algorithm>

#include "base/sum_tree.h"
#include "partition/routes.h"
#include "zero/estimate.h"
#include "zero/plan.h"

namespace zero {

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
  int levels = 1;
  for (int micro = 0; micro < plan_.accumulate(); ++micro)
    for (const AccumulateStep& step : steps(micro)) levels = std::max(levels, step.target + 1);
  return levels;
}

int AccumulationOrder::left() const {
  if (!tree() || reduces_each_) return 1;
  return static_cast<int>(largest_nodes({begin(), end(plan_.accumulate())}, all()).size());
}

int accumulation_levels(const Plan& plan, int ranks) {
  int levels = 1;
  const bool same = Routes(plan).reduces_each() || !plan.reproducible();
  for (int rank = 0; rank < (same ? 1 : ranks); ++rank)
    levels = std::max(levels, AccumulationOrder(plan, ranks, rank).levels());
  return levels;
}

std::int64_t micro_batch_index(const Plan& plan, int ranks, int rank, int micro) {
  const int slot = micro % plan.accumulate();
  if (Routes(plan).reduces_each()) return std::int64_t{slot} * ranks + rank;
  return std::int64_t{rank} * plan.accumulate() + slot;
}

}  // namespace zero
