#include <net/if.h>

#include <algorithm>
#include <cstdlib>
#include <new>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "base/system_random.h"
#include "comm/decorators.h"
#include "comm/hosts.h"
#include "comm/launcher_env.h"
#include "comm/listener.h"
#include "comm/net/network.h"
#include "comm/net/network_meeting.h"
#include "comm/shared.h"
#include "comm/torch/c10d.h"
#include "comm/torch/nccl.h"
#include "comm/torch/rendezvous.h"
#include "comm/torch/torch_log.h"
#include "comm/two_level.h"
#include "memory/torch/arena_allocator.h"
#include "zero/error.h"
#include "zero/world.h"

namespace zero {
namespace {

const char* environment(const char* variable) {
  return std::getenv(variable);
}

void require_interface(const LauncherEnv& env) {
  if (env.interface.empty() || if_nametoindex(env.interface.c_str()) != 0) return;
  throw ConfigError(
      "rank " + std::to_string(env.rank) + ": this host has no network interface \"" + env.interface + "\"",
      "set GLOO_SOCKET_IFNAME to one of those that `ip link` lists, or unset it");
}

// Where the peers reach this rank: loopback on one host, else the interface towards rank 0, or the one that is named.
std::string own_address(const LauncherEnv& env, const Rendezvous& meeting) {
  if (!env.interface.empty()) return address_of_interface(env.interface);
  if (env.one_host()) return kLoopback;
  std::string address = address_towards(meeting.host(), env.port);
  if (is_loopback(address))
    throw ConfigError("rank " + std::to_string(env.rank) + ": \"" + meeting.host() +
                          "\" is this host's loopback address, which the ranks on other hosts cannot reach",
                      "set MASTER_ADDR to an address that all hosts see, or GLOO_SOCKET_IFNAME to an interface");
  return address;
}

using Bytes = std::vector<std::uint8_t>;

const std::string kOfToken = "that of the token";  // in the secret's place

// The ranks of a run, as they are being joined.
class Joining {
 public:
  Joining(const LauncherEnv& env, const InitOptions& options)
      : env_(env), options_(options), meeting_(env, options), identities_(identities()), hosts_(shape()) {}

  World world() {
    auto group = has_nccl() ? reaching_devices(of_host(), nccl()) : of_host();
    if (options_.check) group = checked(std::move(group));
    return {Communicator(std::move(group)), env_.local_rank, env_.local_size};
  }

 private:
  std::shared_ptr<CommunicatorImpl> of_host() {
    const HostMap map(identities_);
    if (options_.transport == Transport::gloo) return gloo(map);
    if (hosts_.hosts == 1) return shared();
    const std::shared_ptr<Links> links = linked();
    std::vector<int> everybody, across;
    for (int rank = 0; rank < env_.size; ++rank) {
      everybody.push_back(rank);
      if (hosts_.local(rank) == hosts_.local(env_.rank)) across.push_back(rank);
    }
    auto all = network_communicator(links, "all", everybody, env_.rank, {options_.timeout, env_.rank, map});
    if (hosts_.ranks_per_host == 1) return all;
    Levels levels{std::move(all), shared(links), nullptr};
    levels.across = network_communicator(links, "across", across, hosts_.host(env_.rank),
                                         {options_.timeout, env_.rank, HostMap(Hosts{hosts_.hosts, 1})});
    return two_level_communicator(std::move(levels), hosts_);
  }

  // Streams to all other ranks. The secret follows from the token; without one rank 0 draws it, and who meets in the
  // store is told.
  std::shared_ptr<Links> linked() {
    NetworkIdentity own{env_.rank, env_.size, random_bytes()};
    const bool known = !env_.token.empty();
    if (known) own.secret = secret_of(env_.token);
    if (env_.rank == 0) {
      tell("secret", known ? kOfToken : std::string(own.secret.begin(), own.secret.end()));
    } else if (!known) {
      const std::string told = ask("secret", 0);
      if (told == kOfToken)
        throw ConfigError("rank " + std::to_string(env_.rank) + ": rank 0 has a ZERO_TOKEN, and this rank has none",
                          "give the same to the launcher of every host");
      std::ranges::copy(told.substr(0, own.secret.size()), own.secret.begin());
    }
    NetworkMeeting meeting(own_address(env_, meeting_), own, options_.timeout);
    return std::make_shared<Links>(meeting.join(of_all("place", meeting.place())));
  }

  DeviceReach nccl() const {
    return {device_identity, [store = meeting_.store(), timeout = options_.timeout](
                                 const std::string& name, int rank, int size, int device, const HostMap& hosts) {
              return nccl_communicator(c10::make_intrusive<c10d::PrefixStore>(name, store), rank, size,
                                       {timeout, device, hosts});
            }};
  }

  // But for what goes by itself, each rank is one that is reached over the network.
  Hosts shape() const {
    return options_.transport == Transport::automatic ? Hosts::of(identities_) : Hosts{env_.size, 1};
  }

  // The host of each rank.
  std::vector<std::string> identities() {
    const std::string mine = host_identity();
    if (!env_.knows_hosts()) count_those_of_host(of_all("kernel", mine), mine);
    if (options_.ranks_per_host == 0) return of_all("host", mine);
    if (env_.local_size % options_.ranks_per_host != 0)
      throw ConfigError("rank " + std::to_string(env_.rank) + ": this host's " + std::to_string(env_.local_size) +
                            " ranks do not divide into hosts of " + std::to_string(options_.ranks_per_host),
                        "change ZERO_RANKS_PER_HOST");
    return of_all("host", mine + "/" + std::to_string(env_.local_rank / options_.ranks_per_host));
  }

  void count_those_of_host(std::span<const std::string> all, const std::string& mine) {
    const auto before = all.first(static_cast<std::size_t>(env_.rank));
    env_.local_rank = static_cast<int>(std::ranges::count(before, mine));
    env_.local_size = static_cast<int>(std::ranges::count(all, mine));
  }

  // What each rank calls its own.
  std::vector<std::string> of_all(const std::string& what, const std::string& mine) const {
    const auto key = [&](int rank) { return what + "/" + std::to_string(rank); };
    tell(key(env_.rank), mine);
    std::vector<std::string> all;
    for (int r = 0; r < env_.size; ++r) all.push_back(ask(key(r), r));
    return all;
  }

  void tell(const std::string& key, const std::string& value) const {
    try {
      meeting_.store()->set(key, Bytes(value.begin(), value.end()));
    } catch (const std::exception&) {
      throw failure("the store in which the ranks meet does not answer any more");
    }
  }

  // What rank `rank` told.
  std::string ask(const std::string& key, int rank) const {
    try {
      const Bytes bytes = meeting_.store()->get(key);
      return {bytes.begin(), bytes.end()};
    } catch (const std::exception&) {
      throw failure("rank " + std::to_string(rank) + " did not say within " + std::to_string(options_.timeout.count()) +
                    " ms how it can be reached");
    }
  }

  CommError failure(const std::string& what) const {
    return CommError("rank " + std::to_string(env_.rank) + ": joining " + std::to_string(env_.size) + " ranks: " + what,
                     "see the other ranks' errors, check that all were started with the same WORLD_SIZE, or raise "
                     "ZERO_TIMEOUT");
  }

  std::shared_ptr<CommunicatorImpl> gloo(const HostMap& hosts) {
    GlooOptions options{options_.timeout, own_address(env_, meeting_), env_.rank, options_.debug, hosts};
    return gloo_communicator(c10::make_intrusive<c10d::PrefixStore>("all", meeting_.store()), env_.rank, env_.size,
                             options);
  }

  std::shared_ptr<CommunicatorImpl> shared(std::shared_ptr<Waits> waits = std::make_shared<Waits>()) {
    const std::string key = "memory/" + std::to_string(hosts_.host(env_.rank));
    const int first = env_.rank - hosts_.local(env_.rank);
    SharedMemoryOptions options{options_.timeout};
    options.waits = std::move(waits);
    for (int r = 0; r < hosts_.ranks_per_host; ++r) options.numbers.push_back(first + r);
    options.publish = [&](const std::string& name) { tell(key, name); };
    options.look_up = [&] { return ask(key, first); };
    return shared_memory_communicator(hosts_.local(env_.rank), hosts_.ranks_per_host, options);
  }

  LauncherEnv env_;
  const InitOptions& options_;
  const QuietTorch quiet_{options_.debug};
  Rendezvous meeting_;
  std::vector<std::string> identities_;  // of hosts, by rank
  Hosts hosts_;
};

// With options that nothing overrides any more.
World joined(const InitOptions& options) {
  const LauncherEnv env = options.ranks ? launcher_env_of(*options.ranks, environment) : read_launcher_env(environment);
  if (env.size == 1) return {};
  require_interface(env);
  return Joining(env, options).world();
}

void start_arena() try { use_arena(); } catch (const std::bad_alloc&) {
  throw ConfigError("there is no address space for the arena of activations",
                    "raise the limit of address space (ulimit -v), or set ZERO_ARENA=0");
}

}  // namespace

World init(const InitOptions& given) {
  const InitOptions options = override_options(given, environment);
  if (options.arena) start_arena();
  return joined(options);
}

}  // namespace zero
