#include "compare.h"

#include <algorithm>
#include <bit>
#include <ostream>

namespace cli {
namespace {

void explain(std::ostream& out, const std::vector<Difference>& all, bool promised) {
  for (const Difference& difference : all)
    out << "  " << difference.plan << " differs from " << difference.from << " from step " << difference.step
        << " on\n";
  if (!promised)
    out << "  (with --accumulate, plans that reduce at different times agree to the bit only with --reproducible and "
           "where\n"
           "  --ranks and --accumulate are powers of two)\n";
}

// Whether the sums over ranks and over micro-batches are subtrees of one tree, whichever comes first.
bool one_tree(int ranks, int micro_batches) {
  return std::has_single_bit(static_cast<unsigned>(ranks)) && std::has_single_bit(static_cast<unsigned>(micro_batches));
}

}  // namespace

std::vector<int> promises(const RunOptions& options, int ranks) {
  std::vector<int> result;
  for (const std::string& name : options.plans) {
    const zero::Plan plan = make_plan(options, name, ranks).on(ranks);
    const bool all = options.accumulate == 1 || (options.reproducible && one_tree(ranks, options.accumulate));
    result.push_back(all ? 0 : static_cast<int>(plan[zero::State::gradient].between));
  }
  return result;
}

int conclude(std::ostream& out, const RunOptions& options, const Report& report) {
  print_report(out, report);
  const std::vector<Difference> all = differences(report, std::vector<int>(report.runs.size()));
  const bool kept = differences(report, promises(options, report.ranks)).empty();
  out << "losses identical: " << (all.empty() ? "yes" : "no") << '\n';
  if (!all.empty()) explain(out, all, !kept);
  const bool predicted =
      std::all_of(report.runs.begin(), report.runs.end(), [](const RunResult& run) { return run.bytes_agree(); });
  if (!predicted) out << "measured bytes differ from the predicted ones\n";
  out.flush();
  return kept && predicted ? 0 : 1;
}

}  // namespace cli
