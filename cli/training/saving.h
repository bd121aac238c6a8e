// A run's checkpoints: from which it goes on, when it saves, and how it ends when it is asked to.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "cli/options/options.h"
#include "cli/report/report.h"
#include "cli/training/train.h"
#include "cli/training/work.h"
#include "zero/engine.h"
#include "zero/world.h"

namespace cli {

// SIGTERM, and SIGUSR1, which Slurm sends before the time of a job is over, are noted while it lives, instead of ending
// the process. One at a time.
class StopSignals {
 public:
  explicit StopSignals(bool noted);
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  // The last one; 0: none.
  static int heard();

 private:
  bool noted_;
};

// Of one run, on every rank. Without --save-to it does nothing.
class Saving {
 public:
  // Collective: makes the folder. Throws zero::CheckpointError where the ranks do not share it.
  Saving(const zero::World& world, const RunOptions& options, const Work& work, Listener& listener);

  // Brings the engine, and the curves so far, to where they were saved. Returns the checkpoint's folder; empty: the run
  // starts. Collective.
  std::string resume(zero::Engine& engine, RunResult& result);

  // Before and after each step; true: the run is to end here. Collective. Throws zero::CheckpointError where a save
  // failed, unless the run is to go on.
  void before_step(zero::Engine& engine);
  bool after_step(zero::Engine& engine, const RunResult& result, const zero::StepReport& report);
  // Without a copy: saves where the last step's state is not saved yet, and waits until it is. False: it could not be.
  // Likewise.
  bool finish(zero::Engine& engine, const RunResult& result);

 private:
  using Clock = std::chrono::steady_clock;

  bool active() const { return !options_.saving.folder.empty(); }
  bool due(const RunResult& result, std::uint32_t requests) const;
  void save(zero::Engine& engine, const RunResult& result, bool behind);
  void hear(const std::string& saved, const std::string& fault);

  const zero::World& world_;
  const RunOptions& options_;
  const Work& work_;
  Listener& listener_;
  SaveInterval interval_;
  StopSignals signals_;
  Clock::time_point saved_at_ = Clock::now();
  std::size_t saved_steps_ = 0;  // tried, when the last save began, or the run
  bool unsaved_ = false;         // what was to be saved last
};

}  // namespace cli
