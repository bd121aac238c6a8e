// The process between a launcher and its ranks. It is the parent of the ranks and the reaper of all that comes from
// them: when the last rank has ended, or the launcher has, however that died, it kills what is left, and ends.
#pragma once

#include <sys/resource.h>

#include <csignal>
#include <string>
#include <vector>

#include "base/system_files.h"
#include "cli/processes/descendants.h"

namespace cli {

struct RankOutput {
  int output, error;
};

// The hosts of a run, on each of which a launcher of its own starts as many ranks.
struct Nodes {
  int count = 1;
  int own = 0;               // this one's number
  std::string address = {};  // of the first, whose first rank serves the store; of one host it is our own
  int port = 0;
};

// What the ranks are started with.
struct Orders {
  std::string program;
  std::vector<std::string> arguments;                    // from argv[0] on
  std::vector<std::vector<std::string>> last_arguments;  // those of each rank behind them; or none at all
  std::vector<RankOutput> outputs;                       // of each rank
  int port;                                              // where the ranks of one host meet
  int restarts;                                          // how often they were started before
  sigset_t mask;
  void (*file_size_signal)(int);
  rlimit files;
  Nodes nodes;
  std::string token;  // of the run, unless the environment has one
};

// How a rank ended, in the terms of waitid.
struct RankEnd {
  int rank;
  int how;
  int status;

  bool failed() const;
  bool killed_by(int signal) const;
};

// Since it was asked for last.
struct News {
  std::vector<int> signals;   // that the keeper was sent; each came before any of `ends` that it led to
  std::vector<RankEnd> ends;  // of the ranks that have ended
};

class Keeper {
 public:
  explicit Keeper(const Orders& orders);
  // Everything that came from the ranks ends with it.
  ~Keeper();
  Keeper(const Keeper&) = delete;
  Keeper& operator=(const Keeper&) = delete;

  int fd() const { return channel_.get(); }
  // To the process group of each rank that runs, and lets those go on that were stopped.
  void signal(int number) const;
  // Throws zero::Error when a rank could not be started.
  News news();
  // Whether nothing is left that came from the ranks.
  bool done() const { return done_; }

 private:
  int finish();

  std::vector<pid_t> before_ = children();
  Reaper reaper_;
  zero::Descriptor channel_;
  pid_t process_ = 0;
  bool done_ = false;
};

}  // namespace cli
