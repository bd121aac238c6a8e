// One plan, trained by the ranks of a world.
#pragma once

#include "cli/options/options.h"
#include "cli/report/report.h"
#include "cli/training/work.h"
#include "zero/engine.h"

namespace cli {

struct Progression {
  zero::StepReport report;
  double seconds = 0;
  double tokens_per_second = 0;
  zero::Ledger ledger;  // of this rank
};

// Hears of a run while it goes on, on every rank.
class Listener {
 public:
  Listener() = default;
  virtual ~Listener() = default;
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  // `predicted` has the bytes that the run is going to be measured by.
  virtual void begin(const zero::Engine&, const RunResult& predicted) { static_cast<void>(predicted); }
  virtual void step(const Progression&) {}
  virtual void evaluated(const Evaluation&) {}
  // Goes on from a checkpoint, with the curves up to there.
  virtual void resumed(const std::string& checkpoint, const RunResult&) { static_cast<void>(checkpoint); }
  virtual void saved(const std::string& checkpoint) { static_cast<void>(checkpoint); }
  virtual void not_saved(const std::string& fault) { static_cast<void>(fault); }
};

// Trains from the start, or from a checkpoint: same weights, same data, whatever the plan. Collective; the result is
// the same on every rank but for the seconds. Sizes are predicted before the first step; measured are the largest of
// all ranks; on the wire the mean of all steps but the first, without evaluations.
RunResult run_plan(const zero::World& world, const RunOptions& options, const Work& work, const std::string& plan,
                   Listener& listener);

// Without runs.
Report report_for(const RunOptions& options, const Work& work, int ranks);

// The ranks that a launcher started. Throws UsageError when --ranks says otherwise.
zero::World join(const RunOptions& options);

}  // namespace cli
