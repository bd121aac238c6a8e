// How `zero train` keeps checkpoints. No torch.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace CLI {  // NOLINT(readability-identifier-naming)
class App;
}

namespace cli {

// From where a run goes on.
struct Resume {
  bool newest = false;                    // if there is one
  std::optional<std::int64_t> step = {};  // neither: from the start
  bool operator==(const Resume&) const = default;
};

// After so many steps, or so many seconds; 0: not by these.
struct SaveInterval {
  std::int64_t steps = 0;
  double seconds = 0;
  bool operator==(const SaveInterval&) const = default;
};

// As they are given; see the functions below.
struct SavingOptions {
  std::string folder;  // empty: nothing is saved
  std::string every;   // empty: at the end
  std::string resume;  // empty: not given
  std::int64_t keep = 0;
  std::int64_t keep_every = 0;
  bool goes_on = false;        // where a save failed
  bool new_optimizer = false;  // begins where the checkpoint has another one's state
};

void add_saving_options(CLI::App& command, SavingOptions& options);

// "100", "10min", "600s", "2h". Throws zero::ConfigError.
SaveInterval save_interval(std::string_view text);
// "auto", "none", "100"; a run that was started again goes on from the newest. Throws zero::ConfigError.
Resume resume_of(std::string_view text);
// Of these options, in a process that torchrun, or we, may have started again.
Resume resume_of(const SavingOptions& options);

// Whether a run of so many steps, `done` of them before it, may save while it goes on, which takes a copy of what is
// saved. What it saves after its last step is written from where it is.
bool saves_behind(const SavingOptions& options, std::int64_t done, std::int64_t steps);

// Throws UsageError for what cannot work, also for a run from the start, or from a step, where a folder already has
// later checkpoints of another run.
void check(const SavingOptions& options);

}  // namespace cli
