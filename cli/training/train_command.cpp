#include <algorithm>
#include <chrono>
#include <iostream>
#include <optional>

#include "cli/commands/commands.h"
#include "cli/complain.h"
#include "cli/exit_codes.h"
#include "cli/options/checks.h"
#include "cli/options/model.h"
#include "cli/report/format.h"
#include "cli/report/progress.h"
#include "cli/training/common.h"
#include "cli/training/outputs.h"
#include "cli/training/own_ranks.h"
#include "cli/training/saving.h"
#include "cli/training/scalars.h"
#include "cli/training/train.h"
#include "cli/training/training_device.h"
#include "planner/theory.h"

namespace cli {
namespace {

constexpr std::chrono::hours kUntilSaved(1);

// The run as text: the plan first, then its steps; a long run shows every hundredth part.
class Printer : public Listener {
 public:
  Printer(const RunOptions& options, int ranks)
      : out_(text_of(options)),
        weights_(starting_weights(options.model, options.seed)),
        device_(options.device),
        ranks_(ranks),
        steps_(options.steps),
        every_(std::max<std::int64_t>(options.steps / 100, 1)),
        progress_(options.plans.front(), options.steps) {}

  void begin(const zero::Engine& engine, const RunResult& predicted) override {
    const zero::Plan& plan = engine.plan();
    out_ << "plan " << plan.label() << ", " << name(plan.precision()) << ", " << ranks_
         << (ranks_ == 1 ? " rank on " : " ranks on ") << device_ << ", " << with_separators(engine.layout().numel())
         << " parameters\n"
         << "starts from " << weights_ << "\n\n";
    Table table(4);
    table.add({"state", "between micro-batches", "at rest", "dtype", "bytes per rank, predicted"});
    const zero::Dtype stored = plan.compute_dtype(zero::Dtype::f32);
    add(table, plan, zero::State::parameter, stored, predicted.parameter.predicted, predicted.tiers);
    add(table, plan, zero::State::gradient, plan.gradient_dtype(stored), predicted.gradient.predicted, predicted.tiers);
    add(table, plan, zero::State::optimizer, zero::Dtype::f32, predicted.optimizer.predicted, predicted.tiers);
    const WireBytes& wire = predicted.wire;
    table.add({"wire, each step", "", "", "", with_separators(wire.predicted)});
    const auto part = [&](const std::string& what, std::int64_t bytes) { add(table, what, bytes); };
    if (wire.across_hosts.predicted > 0) part("  within the host", wire.within_host.predicted);
    part("  across hosts", wire.across_hosts.predicted);
    part("  read in place", wire.in_place.predicted);
    if (!predicted.tiers.empty()) part("peak, in memory", predicted.peak.predicted);
    table.print(out_);
    out_ << std::endl;
  }

  void step(const Progression& now) override {
    const zero::StepReport& report = now.report;
    const std::int64_t step = ++done_;
    if (step % every_ == 0 || step == steps_ || step == first_) {
      progress_.clear();
      out_ << "step " << step << "  loss " << fixed(report.loss, 6) << "  norm " << fixed(report.grad_norm, 4)
           << "  lr " << significant(report.lr, 4) << "  " << fixed(now.tokens_per_second, 0) << " tokens/s"
           << (report.skipped ? "  skipped: the gradient is not finite" : "") << std::endl;
    }
    progress_.show(step, report.loss, now.tokens_per_second, now.ledger.total());
  }

  void evaluated(const Evaluation& evaluation) override {
    progress_.clear();
    out_ << "step " << evaluation.step << "  held-out loss " << fixed(evaluation.loss, 6) << std::endl;
  }

  void resumed(const std::string& checkpoint, const RunResult& result) override {
    done_ = static_cast<std::int64_t>(result.losses.size());
    first_ = done_ + 1;
    out_ << "goes on after step " << done_ << " from " << checkpoint << std::endl;
  }

  void saved(const std::string& checkpoint) override {
    progress_.clear();
    out_ << "saved " << checkpoint << std::endl;
  }

  void not_saved(const std::string& fault) override {
    progress_.clear();
    complain(fault);
  }

 private:
  static void add(Table& table, const std::string& what, std::int64_t bytes) {
    if (bytes > 0) table.add({what, "", "", "", with_separators(bytes)});
  }
  // A state, and below it what of it is on other tiers and moves to and from there.
  static void add(Table& table, const zero::Plan& plan, zero::State state, zero::Dtype dtype, std::int64_t bytes,
                  const std::vector<TierBytes>& tiers) {
    const auto [between, at_rest] = planner::places_of(plan, state);
    table.add({std::string(name(state)), between, at_rest, std::string(name(dtype)), with_separators(bytes)});
    for (const TierBytes& each : tiers) {
      if (each.state != name(state)) continue;
      add(table, "  on " + each.tier, each.held.predicted);
      add(table, "  read from " + each.tier + " each step", each.read.predicted);
      add(table, "  written to " + each.tier + " each step", each.written.predicted);
    }
  }

  std::ostream& out_;
  std::string weights_;  // to start from
  std::string device_;
  int ranks_;
  std::int64_t steps_;
  std::int64_t every_;
  std::int64_t done_ = 0;
  std::int64_t first_ = 1;
  Progress progress_;
};

int train_as_rank(const RunOptions& options) {
  const zero::World world = join(options);
  const bool first = world.rank() == 0;
  const Work work = load(options);
  check_room(options, world.size(), world.local_size());  // before a rank takes any of it
  require_common(world, options, work);
  if (first) check_outputs(options);
  Listener silent;
  std::optional<Printer> printer;
  if (first) printer.emplace(options, world.size());
  Listener& shown = printer ? static_cast<Listener&>(*printer) : silent;
  std::optional<Scalars> scalars;
  if (first && !options.tensorboard.empty()) scalars.emplace(options.tensorboard, shown);
  Listener& listener = scalars ? static_cast<Listener&>(*scalars) : shown;
  Report report = report_for(options, work, world.size());
  report.precision = options.settings.text("precision");
  report.runs = {run_plan(world, options, work, options.plans.front(), listener)};
  printer.reset();
  const RunResult& run = report.runs.front();
  if (first) {
    text_of(options) << '\n';
    if (run.steps_made > 0) {
      print_report(text_of(options), report);
    } else {
      text_of(options) << "nothing is left to do: " << run.losses.size() << " of " << options.steps
                       << " steps are done\n";
    }
    write_outputs(options, report);
    if (run.stopped)
      complain("stopped after step " + std::to_string(run.losses.size()) +
               ", as a signal asked; --resume auto goes on from there");
  }
  if (run.unsaved || (first && says_all_skipped(run))) return kFailed;
  return run.stopped ? kStopped : 0;
}

}  // namespace

int train(const RunOptions& given) {
  const RunOptions options = with_device(given);
  const int ranks = options.ranks ? options.ranks : 1;
  if (launched() || ranks == 1) return train_as_rank(options);
  check_room(options, ranks, ranks);
  load(options);
  Job job = own_ranks(train_arguments(options, options.plans.front(), options.json), ranks);
  job.restarts = options.restarts;
  job.hopeless = {kUsage};
  job.meant = {kStopped};
  if (!options.saving.folder.empty()) job.patience = kUntilSaved;
  return exit_code(run_ranks(job));
}

}  // namespace cli
