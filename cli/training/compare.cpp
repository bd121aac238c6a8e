#include "cli/training/compare.h"

#include <algorithm>
#include <ostream>

#include "cli/options/model.h"
#include "planner/shape.h"
#include "planner/theory.h"

namespace cli {
namespace {

void explain(std::ostream& out, const std::vector<Difference>& all, bool promised) {
  for (const Difference& difference : all)
    out << "  " << difference.plan << " differs from " << difference.from << " from step " << difference.step
        << " on\n";
  if (!promised)
    out << "  (with --accumulate, plans that reduce at different times agree to the bit only with --reproducible)\n";
}

bool bytes_agree(std::ostream& out, const Report& report) {
  const bool agree = std::ranges::all_of(report.runs, &RunResult::bytes_agree);
  if (!agree) out << "bytes differ from the predicted ones\n";
  return agree;
}

// Plans with the same number promise the same bits: all where no two reductions of a step could be made in
// another order, else those that reduce at the same times.
std::vector<int> promises(const RunOptions& options, int ranks) {
  std::vector<int> result;
  for (const std::string& name : options.plans) {
    const zero::Plan plan = make_plan(options, name, ranks).on(mesh_of(options, ranks));
    const bool all = plan.accumulate() == 1 || plan.reproducible();
    result.push_back(all ? 0 : planner::reduces_each(plan) ? 2 : 1);
  }
  return result;
}

bool conclude_plans(std::ostream& out, const RunOptions& options, const Report& report) {
  print_report(out, report);
  const std::vector<Difference> all = differences(report, std::vector<int>(report.runs.size()));
  const bool kept = differences(report, promises(options, report.ranks)).empty();
  out << "losses identical: " << (all.empty() ? "yes" : "no") << '\n';
  if (!all.empty()) explain(out, all, !kept);
  return kept;
}

void conclude_optimizers(std::ostream& out, const RunOptions& options, const Report& report) {
  const zero::MeshShape mesh = mesh_of(options, report.ranks);
  const zero::Plan plan = make_plan(options, options.plans.front(), report.ranks).on(mesh);
  const int among = planner::divided_among(plan, zero::State::optimizer, mesh);
  const planner::Shape part = planner::shape_of(load_model(options.model), options.tensor);
  print_optimizers(out, report, static_cast<double>(part.parameters) / among);
}

std::vector<Contender> optimizer_contenders(const RunOptions& options) {
  const std::vector<std::string> one{options.settings.text("precision")};
  std::vector<Contender> result;
  for (const std::string& optimizer : options.optimizers)
    for (const std::string& precision : options.precisions.empty() ? one : options.precisions) {
      result.push_back({optimizer + " " + precision, options});
      result.back().options.optimizer = optimizer;
      result.back().options.settings.set("precision", precision);
    }
  return result;
}

}  // namespace

std::vector<Contender> contenders(const RunOptions& options) {
  if (!options.optimizers.empty()) return optimizer_contenders(options);
  std::vector<Contender> result;
  for (const std::string& plan : options.plans) {
    result.push_back({plan, options});
    result.back().options.plans = {plan};
  }
  return result;
}

int conclude(std::ostream& out, const RunOptions& options, const Report& report) {
  bool kept = true;
  if (options.optimizers.empty())
    kept = conclude_plans(out, options, report);
  else
    conclude_optimizers(out, options, report);
  const bool predicted = bytes_agree(out, report);
  const bool updated =
      std::ranges::all_of(report.runs, [](const RunResult& run) { return run.update_seconds.has_value(); });
  out.flush();
  return kept && predicted && updated ? 0 : 1;
}

}  // namespace cli
