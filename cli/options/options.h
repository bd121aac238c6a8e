// What `zero train` and `zero compare` are asked to do.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/options/saving_options.h"
#include "partition/plan_settings.h"
#include "zero/error.h"
#include "zero/plan.h"

namespace CLI {  // NOLINT(readability-identifier-naming)
class App;
}

namespace cli {

// The command line asks for something that cannot be; the command's --help says what can.
class UsageError : public zero::ConfigError {
 public:
  using ConfigError::ConfigError;
};

// Instead of a profile: seconds are not predicted.
inline constexpr const char* kNoProfile = "none";

// What is said of plans alike, whichever they are.
struct SharedOptions {
  int shard_ranks = 0;  // of a shard group; 0: all
  int tensor = 1;       // ranks of the tensor axis
  zero::PlanSettings settings;
  std::string recompute = "none";  // of the model's activations
  std::int64_t loss_pieces = 1;
};

// An option's name and a value that it was given.
using GivenOption = std::pair<std::string, std::string>;

struct RunOptions : SharedOptions {
  std::vector<std::string> plans{"zero3"};
  std::string plan_file;  // that `plans` is from; empty: from a preset
  std::string model = "tiny";
  std::string data;  // empty: the default text
  int ranks = 0;     // 0: not given
  int tokens = 0;    // bits of a token in a token file; 0: by the file's name
  int threads = 1;
  std::vector<std::string> disk;  // folders for states on disk
  std::string device;             // empty: a GPU where there is one
  std::int64_t steps = 20;
  std::int64_t batch = 4;
  std::int64_t seq = 128;
  std::string optimizer = "adamw";
  std::vector<std::string> optimizers;  // to compare under the first plan; empty: plans are compared
  std::vector<std::string> precisions;  // to train each of `optimizers` in; empty: in that of `settings`
  std::optional<double> lr;             // none: the optimizer's
  std::string schedule = "cosine";
  std::optional<std::int64_t> warmup;  // none: a tenth of the steps
  double loss_scale = 0;               // 0: the engine's choice
  std::string fp8_scaling = "current";
  double clip = 1;
  std::uint64_t seed = 0;
  bool fp32_norms = false;
  bool memory_check = true;  // before ranks are started
  bool timeline = false;     // memory and activities within a step go to the result
  std::int64_t eval_every = 0;
  std::string json;         // of these three "-" is standard output
  std::string html;         // a page of what was measured
  std::string trace;        // of one step, in Chrome's format
  std::string tensorboard;  // a folder
  std::string profile;      // by which seconds are predicted; empty: the usual one, if it is there and fits
  std::string command;      // as it was typed
  SavingOptions saving;
  int restarts = 0;                // of ranks that we start, within an hour
  std::vector<GivenOption> given;  // beside `settings`, also by a plan file

  // Whether a run is to record what happens within a step.
  bool wants_timeline() const { return timeline || !html.empty() || !trace.empty(); }
};

void add_train_options(CLI::App& command, RunOptions& options);
void add_compare_options(CLI::App& command, RunOptions& options);

// What a command was given, but for settings of the plan.
std::vector<GivenOption> given_to(const CLI::App& command);
// The arguments of ranks that we start: a command's words, and what we were given. `own`: what they are given instead;
// empty: not given.
std::vector<std::string> arguments(std::vector<std::string> command, const std::vector<GivenOption>& given,
                                   const std::map<std::string, std::string>& own = {});
// The arguments, from argv[0] on, of the `zero train` that carries out `options` under one plan and writes to `json`,
// unless that is empty: those that we were given, but for what is said of this run alone.
std::vector<std::string> train_arguments(const RunOptions& options, const std::string& plan, const std::string& json);

// The data axis of so many ranks. Throws UsageError where --tensor or --shard-ranks does not divide them.
zero::MeshShape mesh_of(const SharedOptions& options, int ranks);
// Plans where none are named: the hybrid ones only where there are shard groups.
std::vector<std::string> usual_plans(const SharedOptions& options);
// The preset with everything that the options say about it. Throws UsageError when it cannot work on that mesh.
zero::Plan make_plan(const SharedOptions& options, std::string_view name, int ranks);

// Whether torchrun, `zero launch`, Open MPI or Slurm started this process as one rank of several.
bool launched();

}  // namespace cli
