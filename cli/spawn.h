// Runs a command as N ranks on this host and looks after them until the last has ended.
//
// Every rank leads a process group of its own, which ends with it; no rank outlives this process,
// however it ends. SIGINT, SIGTERM and SIGHUP are passed on. The first rank that fails ends the
// others: SIGTERM, and SIGKILL when the grace period is over.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "meeting.h"

namespace cli {

enum class Output {
  inherit,   // the ranks write to our standard output and error
  prefixed,  // likewise, line by line, each line after "[rank] "
  quiet,     // standard output is dropped
};

struct Job {
  std::string program;                 // a path, or a name that PATH finds
  std::vector<std::string> arguments;  // from argv[0] on
  int ranks = 1;
  Output output = Output::inherit;
  std::chrono::milliseconds grace = std::chrono::seconds(10);
  ServeStore serve = nullptr;
};

struct Outcome {
  int code = 0;         // of the first rank that failed, 128 + n if signal n ended it; 0: none failed
  int passed_on = 0;    // the last signal that we were sent
  std::string message;  // names the rank that failed and how
};

// The ranks get torchrun's variables and a store that we serve, and OMP_NUM_THREADS=1 unless it is set.
// Throws zero::Error when the command cannot be started, or the store not be served; none of its ranks is left then.
Outcome run_ranks(const Job& job);

// Says on standard error, after `context`, how a rank failed. Returns the exit code of a command that needed
// the ranks: 0, 1, 2 where they found their usage wrong, 128 + n after signal n was passed on.
int exit_code(const Outcome& outcome, const std::string& context = {});

}  // namespace cli
