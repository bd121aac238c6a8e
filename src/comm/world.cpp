#include "zero/world.h"

#include <net/if.h>

#include <cstdlib>

#include "comm/c10d.h"
#include "comm/checked.h"
#include "comm/launcher_env.h"
#include "comm/rendezvous.h"
#include "zero/error.h"

namespace zero {
namespace {

const char* environment(const char* variable) {
  return std::getenv(variable);
}

bool is_loopback(const std::string& address) {
  return address.starts_with("127.") || address == "::1";
}

void require_interface(const LauncherEnv& env) {
  if (env.interface.empty() || if_nametoindex(env.interface.c_str()) != 0) return;
  throw ConfigError(
      "rank " + std::to_string(env.rank) + ": this host has no network interface \"" + env.interface + "\"",
      "set GLOO_SOCKET_IFNAME to one of those that `ip link` lists, or unset it");
}

// Where the peers reach this rank: loopback on one host, else the interface towards rank 0.
GlooOptions network(const LauncherEnv& env, const Rendezvous& meeting, std::chrono::milliseconds timeout) {
  GlooOptions options{timeout, "127.0.0.1", env.interface};
  if (env.one_host() || !options.interface.empty()) return options;
  options.address = address_towards(meeting.host(), env.port);
  if (is_loopback(options.address))
    throw ConfigError("rank " + std::to_string(env.rank) + ": \"" + meeting.host() +
                          "\" is this host's loopback address, which the ranks on other hosts cannot reach",
                      "set MASTER_ADDR to an address that all hosts see, or GLOO_SOCKET_IFNAME to an interface");
  return options;
}

}  // namespace

World init(const InitOptions& given) {
  const InitOptions options = override_options(given, environment);
  const LauncherEnv env = read_launcher_env(environment);
  if (env.size == 1) return {};
  require_interface(env);
  const Rendezvous meeting(env, options.timeout);
  auto group = gloo_communicator(meeting.store(), env.rank, env.size, network(env, meeting, options.timeout));
  if (options.check) group = checked(std::move(group));
  return {Communicator(std::move(group)), env.local_rank, env.local_size};
}

}  // namespace zero
