#include "comm/launcher_env.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <string_view>

#include "base/number.h"
#include "zero/error.h"

namespace zero {
namespace {

constexpr int kMaxPort = 65535;
constexpr int kAny = std::numeric_limits<int>::max();
constexpr double kMaxSeconds = 1e9;
constexpr std::size_t kLeastToken = 16;

std::string bounds(int low, int high) {
  if (high == kAny) return "of at least " + std::to_string(low);
  return "between " + std::to_string(low) + " and " + std::to_string(high);
}

class Env {
 public:
  explicit Env(const EnvLookup& lookup) : lookup_(lookup) {}

  std::string text(const char* variable) const {
    const char* value = lookup_(variable);
    return value ? value : "";
  }
  bool has(const char* variable) const { return !text(variable).empty(); }

  int number(const char* variable, int low, int high) const {
    const std::string value = text(variable);
    if (value.empty()) throw ConfigError(std::string(variable) + " is not set", advice());
    const auto read = read_number<int>(value, low, high);
    if (!read.fault.empty())
      throw ConfigError(std::string(variable) + "=" + shown(value) + " is not an integer " + bounds(low, high),
                        advice());
    return read.value;
  }

  int number_or(const char* variable, int low, int high, int otherwise) const {
    return has(variable) ? number(variable, low, high) : otherwise;
  }

 private:
  static std::string advice() { return "start the program with torchrun, mpirun, srun or `zero launch`, or alone"; }

  const EnvLookup& lookup_;
};

struct Names {
  const char* launcher;
  const char* rank;
  const char* size;
  const char* local_rank;
  const char* local_size;  // null: derived
};

constexpr Names kTorchrun{"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"};
constexpr Names kOpenMpi{"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
                         "OMPI_COMM_WORLD_LOCAL_SIZE"};
constexpr Names kSlurm{"Slurm", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", nullptr};

std::optional<Names> find_launcher(const Env& env) {
  for (const Names& names : {kTorchrun, kOpenMpi, kSlurm})
    if (env.has(names.rank) || env.has(names.size)) return names;
  return std::nullopt;
}

// 0 where it is no count.
int count_of(std::string_view text) {
  return read_number<int>(text, 1, kAny).value;
}

// The entry of node `node` in Slurm's list of tasks per node: "4(x2),3" is 4, 4, 3.
int tasks_of_node(const std::string& list, int node) {
  std::string_view rest = list;
  while (!rest.empty()) {
    std::string_view item = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(rest.size(), item.size() + 1));
    const auto open = item.find("(x");
    const bool repeated = open != item.npos && item.back() == ')';
    const int tasks = count_of(item.substr(0, repeated ? open : item.npos));
    const int times = repeated ? count_of(item.substr(open + 2, item.size() - open - 3)) : 1;
    if (tasks < 1 || times < 1) break;
    if (node < times) return tasks;
    node -= times;
  }
  throw ConfigError("the list of Slurm's tasks per node, " + in_quotes(list, '"') + ", does not name this node",
                    "start the program with srun");
}

int slurm_local_size(const Env& env, int size) {
  if (env.number_or("SLURM_NNODES", 1, kAny, 0) == 1) return size;
  const int node = env.number_or("SLURM_NODEID", 0, kAny, 0);
  for (const char* list : {"SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"})
    if (env.has(list)) return tasks_of_node(env.text(list), node);
  if (env.has("SLURM_NTASKS_PER_NODE")) return std::min(size, env.number("SLURM_NTASKS_PER_NODE", 1, kAny));
  throw ConfigError("SLURM_STEP_TASKS_PER_NODE is not set, so the ranks of this host are unknown",
                    "start the program with srun, or set SLURM_NTASKS_PER_NODE");
}

void read_ranks(const Env& env, const Names& names, LauncherEnv& out) {
  out.launcher = names.launcher;
  out.size = env.number(names.size, 1, kAny);
  out.rank = env.number(names.rank, 0, out.size - 1);
  if (names.local_size) {
    out.local_size = env.number(names.local_size, 1, out.size);
  } else {
    out.local_size = slurm_local_size(env, out.size);
    if (out.local_size > out.size)
      throw ConfigError("Slurm names " + std::to_string(out.local_size) + " tasks on this node, SLURM_NTASKS only " +
                            std::to_string(out.size),
                        "start the program with srun");
  }
  out.local_rank = env.number(names.local_rank, 0, out.local_size - 1);
}

void read_address(const Env& env, LauncherEnv& out) {
  const bool any = env.has("MASTER_ADDR") || env.has("MASTER_PORT");
  if (!any && (out.launcher != kTorchrun.launcher || out.size == 1)) return;
  out.host = env.text("MASTER_ADDR");
  if (out.host.empty()) throw ConfigError("MASTER_ADDR is not set", "set it to the host name of rank 0");
  out.port = env.number("MASTER_PORT", 1, kMaxPort);
}

std::string job_id(const Env& env) {
  if (env.has("SLURM_JOB_ID") && env.has("SLURM_STEP_ID"))
    return "slurm-" + env.text("SLURM_JOB_ID") + "-" + env.text("SLURM_STEP_ID");
  for (const char* variable : {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"})
    if (env.has(variable)) return env.text(variable);
  return "";
}

void read_surroundings(const Env& env, LauncherEnv& out) {
  if (env.has("TORCHELASTIC_RESTART_COUNT")) out.attempt = env.text("TORCHELASTIC_RESTART_COUNT");
  out.interface = env.text("GLOO_SOCKET_IFNAME");
  out.token = env.text("ZERO_TOKEN");
  if (!out.token.empty() && out.token.size() < kLeastToken)
    throw ConfigError("ZERO_TOKEN has fewer than " + std::to_string(kLeastToken) + " characters, and could be guessed",
                      "draw one, as by openssl rand -hex 16");
}

int within(const char* field, int value, int low, int high) {
  if (low <= value && value <= high) return value;
  throw ConfigError("InitOptions::ranks has the " + std::string(field) + " " + std::to_string(value),
                    "it is an integer " + bounds(low, high));
}

bool is_true(const std::string& value) {
  return value == "True" || value == "true" || value == "1";
}

void override_switch(const Env& env, const char* name, bool& option) {
  const std::string value = env.text(name);
  if (value.empty()) return;
  if (value != "0" && value != "1") throw ConfigError(std::string(name) + "=" + shown(value) + " is neither 0 nor 1");
  option = value == "1";
}

}  // namespace

LauncherEnv read_launcher_env(const EnvLookup& lookup) {
  const Env env(lookup);
  LauncherEnv out;
  const auto names = find_launcher(env);
  if (!names) return out;
  read_ranks(env, *names, out);
  read_address(env, out);
  out.agent_store = is_true(env.text("TORCHELASTIC_USE_AGENT_STORE"));
  out.job = job_id(env);
  read_surroundings(env, out);
  return out;
}

LauncherEnv launcher_env_of(const Ranks& ranks, const EnvLookup& lookup) {
  LauncherEnv out;
  out.launcher = "the program";
  out.size = within("size", ranks.size, 1, kAny);
  out.rank = within("rank", ranks.rank, 0, ranks.size - 1);
  if (out.size == 1) return out;
  if (ranks.host.empty()) throw ConfigError("InitOptions::ranks has no host", "set it to the host name of rank 0");
  out.local_size = 0;
  out.host = ranks.host;
  out.port = within("port", ranks.port, 1, kMaxPort);
  out.agent_store = ranks.has_store;
  read_surroundings(Env(lookup), out);
  return out;
}

std::optional<Transport> transport_named(std::string_view name) {
  if (name == "auto") return Transport::automatic;
  if (name == "tcp") return Transport::tcp;
  if (name == "gloo") return Transport::gloo;
  return {};
}

InitOptions override_options(InitOptions options, const EnvLookup& lookup) {
  const Env env(lookup);
  if (const std::string value = env.text("ZERO_TIMEOUT"); !value.empty()) {
    const auto seconds = read_number<double>(value, 0, kMaxSeconds);
    if (!seconds.fault.empty() || seconds.value == 0)
      throw ConfigError("ZERO_TIMEOUT=" + shown(value) + " is not a positive number of seconds, of 1e9 at most");
    options.timeout = std::chrono::milliseconds(std::max(1LL, std::llround(seconds.value * 1000)));
  }
  if (options.timeout <= std::chrono::milliseconds(0))
    throw ConfigError("InitOptions::timeout is " + std::to_string(options.timeout.count()) + " ms", "it is positive");
  override_switch(env, "ZERO_CHECK", options.check);
  override_switch(env, "ZERO_ARENA", options.arena);
  override_switch(env, "ZERO_DEBUG", options.debug);
  if (const std::string value = env.text("ZERO_TRANSPORT"); !value.empty()) {
    const auto transport = transport_named(value);
    if (!transport) throw ConfigError("ZERO_TRANSPORT=" + shown(value) + " is none of auto, tcp and gloo");
    options.transport = *transport;
  }
  if (const std::string value = env.text("ZERO_RANKS_PER_HOST"); !value.empty()) {
    const auto ranks = read_number<int>(value, 0, kAny);
    if (!ranks.fault.empty()) throw ConfigError("ZERO_RANKS_PER_HOST=" + shown(value) + " is not a number of ranks");
    options.ranks_per_host = ranks.value;
  }
  return options;
}

}  // namespace zero
