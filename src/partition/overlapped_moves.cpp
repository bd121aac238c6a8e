#include "partition/overlapped_moves.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace zero {
namespace {

std::size_t at(std::int64_t number) {
  return static_cast<std::size_t>(number);
}

class Overlap {
 public:
  Overlap(ActivationPlan& plan, PlannedRun& run, const OperatorTrace& trace, double rate)
      : plan_(plan), run_(run), trace_(trace), rate_(rate) {
    plan_.moves.resize(run.needs.size());
  }

  void store() {
    std::ranges::stable_sort(run_.stored, {}, &PlannedRun::Moved::from);
    for (const PlannedRun::Moved& each : run_.stored)
      if (each.from < each.until) plan_.moves[at(each.from)].push_back({each.storage, /*fetches=*/false});
    wait(run_.stored);
  }

  // The last first: each is over when the next one begins.
  void fetch(std::int64_t budget) {
    std::int64_t next = std::numeric_limits<std::int64_t>::max();
    for (auto at_last = run_.fetched.rbegin(); at_last != run_.fetched.rend(); ++at_last) {
      PlannedRun::Moved& each = *at_last;
      const std::int64_t bytes = trace_.storages[at(each.storage)].bytes;
      const std::int64_t over = std::min(begin(each.until), next), wanted = over - took(each.storage);
      std::int64_t from = each.until;
      while (from > each.from && begin(from) > wanted && run_.needs[at(from - 1)] + bytes <= budget) --from;
      for (std::int64_t i = from; i < each.until; ++i) run_.needs[at(i)] += bytes;
      if (from < each.until) plan_.moves[at(from)].push_back({each.storage, /*fetches=*/true});
      next = wanted;
      each.from = from;
    }
    wait(run_.fetched);
    plan_.peak = std::max(plan_.peak, *std::ranges::max_element(run_.needs));
  }

 private:
  std::int64_t begin(std::int64_t execution) const {
    return run_.begins[std::min(at(execution), run_.begins.size() - 1)];
  }
  std::int64_t took(int storage) const {
    return static_cast<std::int64_t>(rate_ * static_cast<double>(trace_.storages[at(storage)].bytes));
  }
  // One behind the other.
  void wait(const std::vector<PlannedRun::Moved>& all) {
    std::int64_t free = 0, waited = 0;
    for (const PlannedRun::Moved& each : all) {
      free = std::max(free, begin(each.from) + waited) + took(each.storage);
      waited += std::max<std::int64_t>(0, free - begin(each.until) - waited);
    }
    plan_.nanoseconds += waited;
  }

  ActivationPlan& plan_;
  PlannedRun& run_;
  const OperatorTrace& trace_;
  double rate_;
};

}  // namespace

void overlap_moves(ActivationPlan& plan, PlannedRun run, const OperatorTrace& trace, std::int64_t budget,
                   double nanoseconds_a_byte) {
  if (run.needs.empty()) return;
  Overlap overlap(plan, run, trace, nanoseconds_a_byte);
  overlap.store();
  overlap.fetch(budget);
}

}  // namespace zero
