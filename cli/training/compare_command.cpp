#include <stdlib.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <memory>
#include <optional>

#include "base/text.h"
#include "cli/commands/commands.h"
#include "cli/options/checks.h"
#include "cli/options/model.h"
#include "cli/report/format.h"
#include "cli/report/progress.h"
#include "cli/training/common.h"
#include "cli/training/compare.h"
#include "cli/training/outputs.h"
#include "cli/training/own_ranks.h"
#include "cli/training/scalars.h"
#include "cli/training/train.h"
#include "cli/training/training_device.h"

namespace cli {
namespace {

class TemporaryFolder {
 public:
  TemporaryFolder() : path_(temporary_folder() + "/zero.XXXXXX") {
    if (!::mkdtemp(path_.data()))
      throw zero::Error("cannot make " + zero::in_quotes(path_) + ": " + std::strerror(errno));
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

class Bar : public Listener {
 public:
  Bar(const std::string& label, std::int64_t steps) : progress_(label, steps) {}
  void step(const Progression& now) override {
    progress_.show(++done_, now.report.loss, now.tokens_per_second, now.ledger.total());
  }

 private:
  std::int64_t done_ = 0;
  Progress progress_;
};

void announce(const Contender& contender, const RunResult& run) {
  std::cerr << contender.label << ": " << run.losses.size() << " steps, loss " << fixed(run.losses.back(), 4) << ", "
            << fixed(run.step_seconds, 3) << " s/step\n";
}

void announce_weights(const RunOptions& options) {
  std::cerr << "every run starts from " << starting_weights(options.model, options.seed) << '\n';
}

std::string common_precision(const std::vector<RunResult>& runs) {
  const std::string& first = runs.front().precision;
  return std::ranges::all_of(runs, [&](const RunResult& run) { return run.precision == first; }) ? first : "";
}

int finish(const RunOptions& options, const Report& report) {
  write_outputs(options, report);
  return conclude(text_of(options), options, report);
}

int compare_as_rank(const RunOptions& options) {
  const zero::World world = join(options);
  const bool first = world.rank() == 0;
  const Work work = load(options);
  check_room(options, world.size(), world.local_size());  // before a rank takes any of it
  require_common(world, options, work);
  if (first) check_outputs(options);
  if (first) announce_weights(options);
  Report report = report_for(options, work, world.size());
  for (const Contender& contender : contenders(options)) {
    const auto& [label, own] = contender;
    const auto listener = first ? std::make_unique<Bar>(label, own.steps) : std::make_unique<Listener>();
    std::optional<Scalars> scalars;
    if (first && !own.tensorboard.empty()) scalars.emplace(own.tensorboard + "/" + label, *listener);
    Listener& heard = scalars ? static_cast<Listener&>(*scalars) : *listener;
    report.runs.push_back(run_plan(world, own, work, own.plans.front(), heard));
    if (first) announce(contender, report.runs.back());
    if (first) says_all_skipped(report.runs.back());
  }
  report.precision = common_precision(report.runs);
  std::ostream nowhere(nullptr);
  return first ? finish(options, report) : conclude(nowhere, options, report);
}

// What the run of one contender is asked for.
RunOptions alone(RunOptions options, const std::string& label) {
  options.timeline = options.wants_timeline();
  options.html.clear();
  options.trace.clear();
  if (!options.tensorboard.empty()) options.tensorboard += "/" + label;
  return options;
}

int compare_with_own_ranks(const RunOptions& options, int ranks) {
  check_room(options, ranks, ranks);
  Report report = report_for(options, load(options), ranks);
  const TemporaryFolder folder;
  announce_weights(options);
  for (const Contender& contender : contenders(options)) {
    const auto& [label, own] = contender;
    const std::string result = folder.path() + "/" + label + ".json";
    Job job = own_ranks(train_arguments(alone(own, label), own.plans.front(), result), ranks);
    job.output = Output::quiet;
    job.context = label + ": ";
    const Outcome outcome = run_ranks(job);
    // One that updated nothing fails and has said so, but has a result.
    if (outcome.passed_on || !std::filesystem::exists(result)) return exit_code(outcome);
    report.runs.push_back(std::move(runs_from_json(read_file(result)).front()));
    announce(contender, report.runs.back());
  }
  report.precision = common_precision(report.runs);
  report.command = options.command;
  return finish(options, report);
}

}  // namespace

int compare(const RunOptions& given) {
  const RunOptions options = with_device(given);
  return launched() ? compare_as_rank(options) : compare_with_own_ranks(options, options.ranks ? options.ranks : 4);
}

}  // namespace cli
