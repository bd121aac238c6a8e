// Whoever starts the ranks, they train alike: torchrun, Open MPI, Slurm's variables, `zero` itself.
#include <gtest/gtest.h>

#include "procs/zero_program.h"

namespace launchers_test {

using nlohmann::json;
using procs::contains;
using procs::joined;
using procs::kZero;
using procs::Port;
using procs::rank_variables;
using procs::Result;
using procs::run;
using procs::run_together;
using procs::Variables;
using procs::with;
using procs::Words;

class Launchers : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = std::make_unique<procs::Folder>();
    const Result result = run(joined(training("own"), {"--ranks", "2"}));
    ASSERT_EQ(result.code, 0) << result.err;
    expected_ = losses("own");
    ASSERT_EQ(expected_.size(), 5u);
  }
  static void TearDownTestSuite() { folder_.reset(); }

  static Words training(const std::string& report) {
    return joined({kZero, "train"},
                  folder_->small({"--plan", "zero3", "--steps", "5", "--json", folder_->path(report)}));
  }

  // Doubles that are printed so that they round-trip: equal losses are equal bits.
  static json losses(const std::string& report) { return folder_->document(report).at("runs").at(0).at("losses"); }

  static void expect_same_losses(const std::string& report, const Result& result) {
    EXPECT_EQ(result.code, 0) << result.err << result.out;
    ASSERT_TRUE(folder_->has(report)) << result.err << result.out;
    EXPECT_EQ(losses(report), expected_);
  }

  static void expect_same_losses(const std::string& report, const std::vector<Result>& results) {
    for (const Result& result : results) expect_same_losses(report, result);
    EXPECT_TRUE(contains(results[0].out, "step 5  loss "));
    for (std::size_t rank = 1; rank < results.size(); ++rank) EXPECT_EQ(results[rank].out, "");
  }

  static Result torchrun(const Words& options, const Words& program, const Variables& variables = {}) {
    EXPECT_EQ(::access(ZERO_TORCHRUN, X_OK), 0)
        << "torchrun is not beside LibTorch, at '" ZERO_TORCHRUN "': give its place to CMake as -DZERO_TORCHRUN=";
    const Words head{ZERO_TORCHRUN, "--nnodes", "1", "--nproc-per-node", "2", "--no-python"};
    return run(joined(joined(head, options), program), variables);
  }

  static inline std::unique_ptr<procs::Folder> folder_;

 private:
  static inline json expected_;
};

// A shell that does `command` and then `next`.
Words shell(const Words& command, const std::string& next) {
  return joined({"sh", "-c", "\"$@\" && " + next, "sh"}, command);
}

TEST_F(Launchers, Torchrun) {
  const Port port;
  const Result result = torchrun({"--master-port", port.number()}, training("torchrun"));
  expect_same_losses("torchrun", result);
}

TEST_F(Launchers, TorchrunRestartsAndTheRanksMeetAnewInTheStoreOfItsAgent) {
  const Words program = shell(training("attempt"),
                              "{ [ $RANK != 0 ] || { cp " + folder_->path("attempt") + " " + folder_->path("attempt") +
                                  "$TORCHELASTIC_RESTART_COUNT && echo agent $TORCHELASTIC_USE_AGENT_STORE && "
                                  "[ $TORCHELASTIC_RESTART_COUNT = 1 ]; }; }");
  const Result result = torchrun({"--standalone", "--max-restarts", "1"}, program);
  EXPECT_TRUE(contains(result.out, "agent True\n")) << result.out;
  expect_same_losses("attempt0", result);
  expect_same_losses("attempt1", result);
}

// Rank 0 is killed when it has saved; whoever it was that started the ranks, they go on from there.
TEST_F(Launchers, TorchrunRestartsAndTheRanksGoOnFromTheNewestCheckpoint) {
  const Words training_that_saves =
      joined(training("resumed"), {"--save-to", folder_->path("saved"), "--save-every", "1"});
  const std::string pipe = "'" + folder_->path("pipe") + "'";
  const std::string once = "if [ $RANK$TORCHELASTIC_RESTART_COUNT != 00 ]; then exec \"$@\"; fi; mkfifo " + pipe +
                           "; \"$@\" > " + pipe + " & grep -m1 'saved ' " + pipe + "; kill -9 $!; exit 1";
  const Result result =
      torchrun({"--standalone", "--max-restarts", "1"}, joined({"sh", "-c", once, "sh"}, training_that_saves));
  expect_same_losses("resumed", result);
  EXPECT_TRUE(contains(result.out, "goes on after step ")) << result.out << result.err;
}

TEST_F(Launchers, OpenMpi) {
  const Words mpirun{"mpirun", "-n", "2", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none"};
  expect_same_losses("mpi", run(joined(mpirun, training("mpi"))));
}

std::vector<Variables> slurm_tasks(const Variables& more) {
  std::vector<Variables> tasks;
  for (const char* rank : {"0", "1"})
    tasks.push_back(with({{"SLURM_PROCID", rank},
                          {"SLURM_NTASKS", "2"},
                          {"SLURM_LOCALID", rank},
                          {"SLURM_NODEID", "0"},
                          {"SLURM_NNODES", "1"},
                          {"SLURM_JOB_ID", std::to_string(::getpid())},
                          {"SLURM_STEP_ID", "0"}},
                         more));
  return tasks;
}

TEST_F(Launchers, SlurmOnOneHost) {
  expect_same_losses("slurm", run_together(training("slurm"), slurm_tasks({})));
}

TEST_F(Launchers, SlurmWithAnAddress) {
  const Port port;
  const Variables address{{"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", port.number()}};
  expect_same_losses("address", run_together(training("address"), slurm_tasks(address)));
}

TEST_F(Launchers, VariablesSetByHand) {
  const Port port;
  expect_same_losses("hand", run_together(training("hand"),
                                          {rank_variables(0, 2, port.number()), rank_variables(1, 2, port.number())}));
}

// Shared memory, streams, Gloo, and memory with streams: two hosts of two ranks, as far as the ranks can tell.
TEST_F(Launchers, TheTransportDoesNotChangeTheLosses) {
  for (const std::string name : {"tcp", "gloo"})
    expect_same_losses(name, run(joined(training(name), {"--ranks", "2"}), {{"ZERO_TRANSPORT", name}}));
  const auto on_four = [](const std::string& report, const Variables& transport) {
    const Result result = run(joined(training(report), {"--ranks", "4"}), transport);
    EXPECT_EQ(result.code, 0) << result.err;
    return losses(report);
  };
  const json expected = on_four("auto4", {{"ZERO_TRANSPORT", "auto"}});
  EXPECT_EQ(expected.size(), 5u);
  EXPECT_EQ(on_four("tcp4", {{"ZERO_TRANSPORT", "tcp"}}), expected);
  EXPECT_EQ(on_four("gloo4", {{"ZERO_TRANSPORT", "gloo"}}), expected);
  EXPECT_EQ(on_four("hosts4", {{"ZERO_RANKS_PER_HOST", "2"}}), expected);
  EXPECT_EQ(on_four("gloohosts4", {{"ZERO_TRANSPORT", "gloo"}, {"ZERO_RANKS_PER_HOST", "2"}}), expected);
  // Bytes of a step within the host, across hosts and read in place, as predicted.
  const auto ways = [](const std::string& report) {
    const json wire = folder_->document(report).at("runs").at(0).at("wire_bytes_per_step");
    std::vector<std::int64_t> bytes;
    for (const char* const way : {"within_host", "across_hosts", "in_place"}) {
      EXPECT_EQ(wire.at(way).at("measured"), wire.at(way).at("predicted")) << report << " " << way;
      bytes.push_back(wire.at(way).at("measured"));
    }
    EXPECT_EQ(wire.at("measured"), bytes[0] + bytes[1]) << report;
    return bytes;
  };
  const auto shared = ways("auto4"), gloo = ways("gloo4"), levels = ways("hosts4"), flat = ways("gloohosts4");
  EXPECT_EQ(shared[1], 0);
  EXPECT_GT(shared[2], 0);
  EXPECT_EQ(gloo[1], 0) << "all ranks are on one host, whatever they talk over";
  EXPECT_EQ(ways("tcp4"), gloo);
  EXPECT_EQ(gloo[2] + levels[2] + flat[2], 0);
  EXPECT_GT(levels[1], 0);
  EXPECT_GT(flat[1], levels[1]) << "over two levels what crosses does so once a host";
}

TEST_F(Launchers, ATransportThatIsUnknownIsNamed) {
  const Result result = run(joined(training("none"), {"--ranks", "2"}), {{"ZERO_TRANSPORT", "pigeon"}});
  EXPECT_EQ(result.code, 2);
  EXPECT_TRUE(contains(result.err, "ZERO_TRANSPORT=pigeon")) << result.err;
}

TEST_F(Launchers, VariablesThatAreMissingOrContradictAreNamed) {
  const auto error = [](const std::string& change, const std::string& value) {
    const Result result = run(training("none"), with(rank_variables(1, 2, "1"), {{change, value}}));
    EXPECT_EQ(result.code, 2) << result.err;
    return result.err;
  };
  EXPECT_TRUE(contains(error("MASTER_ADDR", ""), "MASTER_ADDR is not set"));
  EXPECT_TRUE(contains(error("MASTER_PORT", ""), "MASTER_PORT is not set"));
  EXPECT_TRUE(contains(error("WORLD_SIZE", "1"), "RANK=1 is not an integer between 0 and 0"));
  EXPECT_TRUE(contains(error("LOCAL_WORLD_SIZE", "3"), "LOCAL_WORLD_SIZE=3"));
}

TEST_F(Launchers, SlurmWithoutAJobSaysWhatItNeeds) {
  const auto results = run_together(training("none"), slurm_tasks({{"SLURM_JOB_ID", ""}}));
  for (const Result& result : results) {
    EXPECT_EQ(result.code, 2);
    EXPECT_TRUE(contains(result.err, "MASTER_ADDR")) << result.err;
  }
}

TEST_F(Launchers, APortThatIsTakenIsNamed) {
  const Port port(Port::Use::listening);
  const Result result = run(training("none"), rank_variables(0, 2, port.number()));
  EXPECT_EQ(result.code, 1);
  EXPECT_TRUE(contains(result.err, "cannot listen at 127.0.0.1:" + port.number())) << result.err;
}

}  // namespace launchers_test
