// The subcommands. Each returns the exit code and throws for what it cannot do.
#pragma once

#include <csignal>
#include <optional>
#include <string>
#include <vector>

#include "cli/options/eval_options.h"
#include "cli/options/options.h"
#include "cli/processes/meeting.h"

namespace cli {

struct LaunchOptions {
  int ranks = 0;  // 0: as many as `hosts` says
  bool plain = false;
  double grace = 10;
  int restarts = 0;
  int nodes = 1, node_rank = 0;
  std::string master;                // ADDRESS or ADDRESS:PORT, of the first node
  std::optional<std::string> hosts;  // a list or a file; none: the nodes are started one by one
  std::string agent = "ssh -T -o BatchMode=yes -o ConnectTimeout=20 -o ServerAliveInterval=15";
  std::vector<std::string> exported;  // variables
  std::string ordered;                // the name that `zero launch --hosts`, which started this, has for this host
  void (*file_size_signal)(int) = SIG_DFL;  // what the program does about SIGXFSZ
  std::vector<std::string> command;
};

struct ProfileOptions {
  int ranks = 0;  // 0: 4, or one for each device of the kind
  std::vector<std::string> precisions{"fp32", "bf16"};
  std::string network = "10Gbit";  // to other hosts, which cannot be measured on one
  int threads = 1;
  std::string device = "cpu";
  std::vector<std::string> disk = {};  // folders for states on disk; none: that is not measured
  std::string out = {};                // empty: planner::usual_profile_path()
  std::string show = {};               // instead of measuring: a profile to print
  std::vector<GivenOption> given = {};
};

// Starts its ranks unless a launcher did, in which case this process is one of them.
int train(const RunOptions& options);
// Likewise; ranks of its own are started anew for every plan, so that peaks of memory do not mix.
int compare(const RunOptions& options);
// Without LibTorch, unless the ranks meet.
int launch(const LaunchOptions& options);
// Measures what this machine can do, likewise.
int profile(const ProfileOptions& options);
// The mean loss of a model with weights over a text, on one rank.
int evaluate(const EvalOptions& options);
// Prints one of the given profiles, or a file, as JSON. Without LibTorch.
int show_profile(const std::string& name);

// What needs LibTorch, which takes a quarter of a second to load, lies in a library of its own beside the program.
struct Training {
  int (*train)(const RunOptions& options);
  int (*compare)(const RunOptions& options);
  int (*profile)(const ProfileOptions& options);
  int (*evaluate)(const EvalOptions& options);
  ServeStore serve_store;
};
inline constexpr const char* kTrainingEntry = "zero_training";
using TrainingEntry = const Training*();

// Loads the library when it is first called. Throws zero::Error, saying where it was looked for.
const Training& training();

}  // namespace cli
