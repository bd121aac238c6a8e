// What the launcher's environment variables say, or the program itself; a pure function of a lookup.
#pragma once

#include <functional>
#include <string>

#include "zero/world.h"

namespace zero {

// The value of a variable, or null: std::getenv.
using EnvLookup = std::function<const char*(const char*)>;

struct LauncherEnv {
  std::string launcher;  // "torchrun", "Open MPI", "Slurm"; empty: started alone
  int rank = 0;
  int size = 1;
  int local_rank = 0;
  int local_size = 1;  // 0: not said, local_rank neither
  std::string host;    // where rank 0 listens; empty: not said
  int port = 0;
  bool agent_store = false;   // somebody else listens there already
  std::string attempt = "0";  // of an elastic job
  std::string job;            // unique among the jobs of a host; empty: unknown
  std::string interface;      // GLOO_SOCKET_IFNAME
  std::string token;          // ZERO_TOKEN: what all ranks know, and others do not; empty: nothing

  bool one_host() const { return local_size == size; }
  bool knows_hosts() const { return local_size != 0; }
};

// Throws ConfigError naming the variable that is missing, malformed or out of range.
LauncherEnv read_launcher_env(const EnvLookup& lookup);

// As a program says it that starts its ranks itself; of the variables, those about them do not count. Throws
// ConfigError naming what is out of range.
LauncherEnv launcher_env_of(const Ranks& ranks, const EnvLookup& lookup);

// `options` as overridden by the variables that InitOptions names.
InitOptions override_options(InitOptions options, const EnvLookup& lookup);

}  // namespace zero
