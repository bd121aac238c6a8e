// Runs a command as N ranks on this host, of a run that may have others, and looks after them until the last has ended.
//
// Every rank leads a Unix session and a process group of its own, which ends with it: what a terminal sends reaches
// this process, not them. Nothing that comes from a rank outlives this process, however it ends, nor the call, in
// whatever session it is. SIGINT, SIGTERM, SIGHUP, SIGUSR1 and SIGUSR2 are passed on, whether this process gets them
// or the keeper. The first rank that fails ends the others: SIGTERM, and SIGKILL when the grace period is over.
//
// Whoever reads our output may stop reading: signals and dead ranks are acted on all the same. When the ranks have
// ended, what they wrote is delivered for as long as that takes; after a failure or a signal, for no longer than the
// grace period.
#pragma once

#include <chrono>
#include <csignal>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "cli/processes/keeper.h"
#include "cli/processes/meeting.h"

namespace cli {

enum class Output {
  inherit,   // the ranks write to our standard output and error
  lines,     // likewise, line by line
  prefixed,  // likewise, each line after "[rank] "
  quiet,     // standard output is dropped
};

struct Job {
  std::string program;                                        // a path, or a name that PATH finds
  std::vector<std::string> arguments;                         // from argv[0] on
  std::vector<std::vector<std::string>> last_arguments = {};  // those of each rank behind them; or none at all
  std::vector<std::string> names = {};                        // of the ranks, in what is said of them; none: "rank 3"
  int ranks = 1;                                              // on this host
  Nodes nodes = {};
  Output output = Output::inherit;
  std::chrono::milliseconds grace = std::chrono::seconds(10);  // after a failure
  std::optional<std::chrono::milliseconds> patience = {};      // after the first signal to us; none: the same
  int restarts = 0;                                            // within an hour
  int started_before = 0;          // how often the ranks were, by whoever started this process
  int orders = -1;                 // where signals come from too, a byte each; its end is SIGHUP. -1: nowhere
  std::vector<int> hopeless = {};  // exit codes of failures that are the same however often ranks are started
  std::vector<int> meant = {};     // those of ranks that ended as they were asked to, which are no failures
  ServeStore serve = nullptr;
  std::string context = {};                 // before what is said about a failure
  void (*file_size_signal)(int) = SIG_DFL;  // what the ranks do about SIGXFSZ
  std::filesystem::path system = "/";       // where /proc and /sys lie
};

struct Outcome {
  // Of the first rank that failed, 128 + n if signal n ended it or the run, or that of a rank that meant it; 0: all
  // went well.
  int code = 0;
  int passed_on = 0;  // the last signal that we were sent before a rank failed
  bool told = false;  // that we were sent one at all that ends a run
};

// The ranks get torchrun's variables, among them how often they were started again (TORCHELASTIC_RESTART_COUNT), and
// OMP_NUM_THREADS=1 unless it is set; on one host also a store that we serve, and, unless there is a ZERO_TOKEN, one
// that is drawn. Says on standard error what went wrong: the rank that failed, and how; the signal; that output could
// not be written. Throws zero::Error when the command cannot be started, or the store not be served; none of its ranks
// is left then.
Outcome run_ranks(const Job& job);

// Of a command that needed the ranks: 0, 1, 2 where they found their usage wrong, 128 + n after signal n was passed on.
int exit_code(const Outcome& outcome);

}  // namespace cli
