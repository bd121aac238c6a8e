#include "comm/launcher_env.h"

#include <gtest/gtest.h>

#include <map>

#include "zero/error.h"

namespace zero::launcher_env_test {

using Variables = std::map<std::string, std::string>;

EnvLookup lookup_in(const Variables& variables) {
  return [&variables](const char* name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  };
}

LauncherEnv read(const Variables& variables) {
  return read_launcher_env(lookup_in(variables));
}

std::string refusal(const Variables& variables) {
  try {
    read(variables);
    override_options({}, lookup_in(variables));
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "accepted";
}

Variables with(Variables variables, const Variables& changes) {
  for (const auto& [name, value] : changes) variables[name] = value;
  return variables;
}

const Variables kTorchrun = {{"RANK", "5"},
                             {"WORLD_SIZE", "8"},
                             {"LOCAL_RANK", "1"},
                             {"LOCAL_WORLD_SIZE", "4"},
                             {"MASTER_ADDR", "node0"},
                             {"MASTER_PORT", "29500"}};
const Variables kOpenMpi = {{"OMPI_COMM_WORLD_RANK", "2"},
                            {"OMPI_COMM_WORLD_SIZE", "3"},
                            {"OMPI_COMM_WORLD_LOCAL_RANK", "2"},
                            {"OMPI_COMM_WORLD_LOCAL_SIZE", "3"},
                            {"PMIX_NAMESPACE", "prterun-node-77@1"}};
const Variables kSlurm = {{"SLURM_PROCID", "6"}, {"SLURM_NTASKS", "7"},  {"SLURM_LOCALID", "2"},
                          {"SLURM_NODEID", "1"}, {"SLURM_NNODES", "2"},  {"SLURM_STEP_TASKS_PER_NODE", "4,3"},
                          {"SLURM_JOB_ID", "9"}, {"SLURM_STEP_ID", "0"}, {"MASTER_ADDR", "node0"},
                          {"MASTER_PORT", "1"}};

TEST(LauncherEnv, HasTheTokenOfTheRun) {
  EXPECT_EQ(read(kTorchrun).token, "");
  EXPECT_EQ(read(with(kTorchrun, {{"ZERO_TOKEN", "sixteen letters."}})).token, "sixteen letters.");
  EXPECT_NE(refusal(with(kTorchrun, {{"ZERO_TOKEN", "guessed"}})).find("fewer than 16 characters"), std::string::npos);
}

TEST(LauncherEnv, IsOneRankWhenStartedAlone) {
  const LauncherEnv env = read({{"PATH", "x"}});
  EXPECT_EQ(env.launcher, "");
  EXPECT_EQ(env.size, 1);
  EXPECT_EQ(env.local_size, 1);
}

TEST(LauncherEnv, ReadsTorchrun) {
  const LauncherEnv env = read(kTorchrun);
  EXPECT_EQ(env.launcher, "torchrun");
  EXPECT_EQ(env.rank, 5);
  EXPECT_EQ(env.size, 8);
  EXPECT_EQ(env.local_rank, 1);
  EXPECT_EQ(env.local_size, 4);
  EXPECT_EQ(env.host, "node0");
  EXPECT_EQ(env.port, 29500);
  EXPECT_EQ(env.attempt, "0");
  EXPECT_FALSE(env.agent_store);
  EXPECT_FALSE(env.one_host());
}

TEST(LauncherEnv, KnowsTheAgentsStoreAndTheAttempt) {
  for (const char* yes : {"True", "true", "1"})
    EXPECT_TRUE(read(with(kTorchrun, {{"TORCHELASTIC_USE_AGENT_STORE", yes}})).agent_store);
  EXPECT_FALSE(read(with(kTorchrun, {{"TORCHELASTIC_USE_AGENT_STORE", "False"}})).agent_store);
  EXPECT_EQ(read(with(kTorchrun, {{"TORCHELASTIC_RESTART_COUNT", "3"}})).attempt, "3");
}

TEST(LauncherEnv, ReadsOpenMpiWithoutAnAddress) {
  const LauncherEnv env = read(kOpenMpi);
  EXPECT_EQ(env.launcher, "Open MPI");
  EXPECT_EQ(env.rank, 2);
  EXPECT_TRUE(env.one_host());
  EXPECT_EQ(env.host, "");
  EXPECT_EQ(env.job, "prterun-node-77@1");
}

TEST(LauncherEnv, TheAddressGivenCountsUnderAnyLauncher) {
  const LauncherEnv env = read(with(kOpenMpi, {{"MASTER_ADDR", "h"}, {"MASTER_PORT", "65535"}}));
  EXPECT_EQ(env.host, "h");
  EXPECT_EQ(env.port, 65535);
}

TEST(LauncherEnv, TorchrunComesBeforeTheOthers) {
  EXPECT_EQ(read(with(with(kSlurm, kOpenMpi), kTorchrun)).launcher, "torchrun");
  EXPECT_EQ(read(with(kSlurm, kOpenMpi)).launcher, "Open MPI");
}

TEST(LauncherEnv, ReadsSlurm) {
  const LauncherEnv env = read(kSlurm);
  EXPECT_EQ(env.launcher, "Slurm");
  EXPECT_EQ(env.rank, 6);
  EXPECT_EQ(env.size, 7);
  EXPECT_EQ(env.local_rank, 2);
  EXPECT_EQ(env.local_size, 3);
  EXPECT_EQ(env.job, "slurm-9-0");
}

TEST(LauncherEnv, UnderstandsSlurmsTasksPerNode) {
  const auto local_size = [](const char* node, const char* list) {
    return read(with(kSlurm, {{"SLURM_PROCID", "20"},
                              {"SLURM_NTASKS", "21"},
                              {"SLURM_LOCALID", "0"},
                              {"SLURM_NODEID", node},
                              {"SLURM_STEP_TASKS_PER_NODE", list}}))
        .local_size;
  };
  EXPECT_EQ(local_size("0", "4(x3),2(x2),5"), 4);
  EXPECT_EQ(local_size("2", "4(x3),2(x2),5"), 4);
  EXPECT_EQ(local_size("3", "4(x3),2(x2),5"), 2);
  EXPECT_EQ(local_size("5", "4(x3),2(x2),5"), 5);
  for (const char* wrong : {"4(x3", "4,3(x", "4x3", "x", "4(x1)"})
    EXPECT_NE(refusal(with(kSlurm, {{"SLURM_STEP_TASKS_PER_NODE", wrong}})).find("tasks per node"), -1ul) << wrong;
}

TEST(LauncherEnv, AllOfSlurmsTasksAreHereOnOneNode) {
  const LauncherEnv env =
      read({{"SLURM_PROCID", "1"}, {"SLURM_NTASKS", "2"}, {"SLURM_LOCALID", "1"}, {"SLURM_NNODES", "1"}});
  EXPECT_TRUE(env.one_host());
}

TEST(LauncherEnv, NamesWhatIsMissing) {
  for (const auto& [name, value] : kTorchrun) {
    Variables some = kTorchrun;
    some.erase(name);
    EXPECT_NE(refusal(some).find(name + " is not set"), -1ul) << refusal(some);
  }
  EXPECT_NE(refusal({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "2"}}).find("SLURM_STEP_TASKS_PER_NODE"), -1ul);
  EXPECT_NE(refusal(with(kOpenMpi, {{"MASTER_PORT", "1"}})).find("MASTER_ADDR"), -1ul);
}

TEST(LauncherEnv, NamesWhatIsMalformedOrOutOfRange) {
  const Variables wrong = {{"RANK", "8"},
                           {"WORLD_SIZE", "0"},
                           {"LOCAL_RANK", "-1"},
                           {"LOCAL_WORLD_SIZE", "9"},
                           {"MASTER_PORT", "65536"},
                           {"ZERO_TIMEOUT", "soon"},
                           {"ZERO_CHECK", "yes"}};
  for (const auto& [name, value] : wrong) {
    const std::string text = refusal(with(kTorchrun, {{name, value}}));
    EXPECT_NE(text.find(name + "=" + value), -1ul) << text;
  }
  for (const char* number : {"1x", "1.5", " 1", "+1", "01", "99999999999"})
    EXPECT_NE(refusal(with(kTorchrun, {{"RANK", number}})), "accepted") << number;
}

TEST(LauncherEnv, OverridesOptions) {
  const Variables variables = {{"ZERO_TIMEOUT", "2.5"}, {"ZERO_CHECK", "0"}};
  InitOptions given;
  given.check = true;
  const InitOptions options = override_options(given, lookup_in(variables));
  EXPECT_EQ(options.timeout, std::chrono::milliseconds(2500));
  EXPECT_FALSE(options.check);
  EXPECT_EQ(override_options(given, lookup_in({})).timeout, given.timeout);
  for (const char* wrong : {"0", "-1", "nan", "inf", "1e30", "5s"})
    EXPECT_NE(refusal({{"ZERO_TIMEOUT", wrong}}).find("ZERO_TIMEOUT"), -1ul) << wrong;
}

InitOptions overridden(const char* name, const char* value, const InitOptions& given = {}) {
  const Variables variables = {{name, value}};
  return override_options(given, lookup_in(variables));
}

TEST(LauncherEnv, NoTimeLimitBecomesNone) {
  using std::chrono::milliseconds;
  for (const char* little : {"0.0004", "1e-300", "0.001"})
    EXPECT_EQ(overridden("ZERO_TIMEOUT", little).timeout, milliseconds(1)) << little;
  EXPECT_EQ(overridden("ZERO_TIMEOUT", "0.1").timeout, milliseconds(100));
}

void expect_refused(const std::string& name, const std::vector<std::string>& values) {
  for (const std::string& value : values) {
    const std::string text = refusal({{name, value}});
    EXPECT_NE(text.find(name + "=" + value + " is "), -1ul) << text;
  }
}

TEST(LauncherEnv, OverridesTheTransport) {
  InitOptions gloo;
  gloo.transport = Transport::gloo;
  EXPECT_EQ(overridden("ZERO_TRANSPORT", "gloo").transport, Transport::gloo);
  EXPECT_EQ(overridden("ZERO_TRANSPORT", "tcp").transport, Transport::tcp);
  EXPECT_EQ(overridden("ZERO_TRANSPORT", "auto", gloo).transport, Transport::automatic);
  EXPECT_EQ(overridden("ZERO_TRANSPORT", "", gloo).transport, Transport::gloo);
  EXPECT_EQ(InitOptions().transport, Transport::automatic);
  expect_refused("ZERO_TRANSPORT", {"TCP", "sockets", "Gloo", "automatic", "auto ", "0"});
}

TEST(LauncherEnv, OverridesTheRanksOfAHost) {
  InitOptions pairs;
  pairs.ranks_per_host = 2;
  EXPECT_EQ(overridden("ZERO_RANKS_PER_HOST", "3", pairs).ranks_per_host, 3);
  EXPECT_EQ(overridden("ZERO_RANKS_PER_HOST", "0", pairs).ranks_per_host, 0);
  EXPECT_EQ(overridden("ZERO_RANKS_PER_HOST", "", pairs).ranks_per_host, 2);
  EXPECT_EQ(InitOptions().ranks_per_host, 0);
  expect_refused("ZERO_RANKS_PER_HOST", {"-1", "two", "2x", " 2", "1.5", "99999999999"});
}

TEST(LauncherEnv, OverridesTheArena) {
  InitOptions none;
  none.arena = false;
  EXPECT_FALSE(overridden("ZERO_ARENA", "0").arena);
  EXPECT_TRUE(overridden("ZERO_ARENA", "1", none).arena);
  EXPECT_FALSE(overridden("ZERO_ARENA", "", none).arena);
  EXPECT_TRUE(InitOptions().arena);
  expect_refused("ZERO_ARENA", {"2", "on", "true", "-1"});
}

TEST(LauncherEnv, OverridesWhetherLibTorchIsHeard) {
  InitOptions loud;
  loud.debug = true;
  EXPECT_TRUE(overridden("ZERO_DEBUG", "1").debug);
  EXPECT_FALSE(overridden("ZERO_DEBUG", "0", loud).debug);
  EXPECT_TRUE(overridden("ZERO_DEBUG", "", loud).debug);
  EXPECT_FALSE(InitOptions().debug);
  expect_refused("ZERO_DEBUG", {"2", "on", "true", "-1"});
}

std::string refused(const Ranks& ranks) try {
  launcher_env_of(ranks, lookup_in({}));
  return "accepted";
} catch (const ConfigError& error) {
  return error.what();
}

TEST(LauncherEnv, IsWhatTheProgramSaysOfItsOwnRanks) {
  const Variables variables = with(kTorchrun, {{"TORCHELASTIC_RESTART_COUNT", "3"}, {"GLOO_SOCKET_IFNAME", "eth7"}});
  const LauncherEnv env =
      launcher_env_of({.rank = 2, .size = 3, .host = "node1", .port = 77, .has_store = true}, lookup_in(variables));
  EXPECT_EQ(env.rank, 2);
  EXPECT_EQ(env.size, 3);
  EXPECT_FALSE(env.knows_hosts());
  EXPECT_FALSE(env.one_host());
  EXPECT_EQ(env.host, "node1");
  EXPECT_EQ(env.port, 77);
  EXPECT_TRUE(env.agent_store);
  EXPECT_EQ(env.attempt, "3");
  EXPECT_EQ(env.interface, "eth7");
}

TEST(LauncherEnv, IsOneRankWhereTheProgramSaysSo) {
  const LauncherEnv env = launcher_env_of({}, lookup_in(kTorchrun));
  EXPECT_EQ(env.size, 1);
  EXPECT_TRUE(env.one_host());
}

TEST(LauncherEnv, RefusesRanksThatCannotBe) {
  EXPECT_EQ(refused({.rank = 0, .size = 0}), "InitOptions::ranks has the size 0 (it is an integer of at least 1)");
  EXPECT_EQ(refused({.rank = 3, .size = 3, .host = "a", .port = 1}),
            "InitOptions::ranks has the rank 3 (it is an integer between 0 and 2)");
  EXPECT_EQ(refused({.rank = -1, .size = 3, .host = "a", .port = 1}),
            "InitOptions::ranks has the rank -1 (it is an integer between 0 and 2)");
  EXPECT_EQ(refused({.rank = 1, .size = 2, .port = 1}),
            "InitOptions::ranks has no host (set it to the host name of rank 0)");
  for (const int port : {0, -1, 65536})
    EXPECT_EQ(refused({.rank = 1, .size = 2, .host = "a", .port = port}),
              "InitOptions::ranks has the port " + std::to_string(port) + " (it is an integer between 1 and 65535)");
}

}  // namespace zero::launcher_env_test
