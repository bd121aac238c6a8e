// Where ranks meet, who can come there, and that they can meet again.
#include <gtest/gtest.h>

#include <filesystem>
#include <set>

#include "procs/zero_program.h"

namespace meetings_test {

using procs::contains;
using procs::joined;
using procs::Port;
using procs::Program;
using procs::rank_variables;
using procs::Result;
using procs::run;
using procs::run_together;
using procs::said_by;
using procs::Variables;
using procs::with;
using procs::Words;
using procs::zero;

const Words kMeetsAgain{ZERO_VICTIM, "meets-again"};
const Words kTrainsOn{ZERO_VICTIM, "killed", "99", "zero3"};

std::string met(int rank, int ranks, int times = 20) {
  const std::string as = std::to_string(rank) + " of " + std::to_string(ranks);
  return "met " + std::to_string(times) + " times as " + as + ", here " + as + "\n";
}

class Meetings : public testing::TestWithParam<const char*> {
 protected:
  static Variables transport() { return {{"ZERO_TRANSPORT", GetParam()}}; }

  static void expect_met(const std::vector<Variables>& ranks) {
    const std::vector<Result> results = run_together(kMeetsAgain, ranks);
    for (std::size_t rank = 0; rank < results.size(); ++rank) {
      EXPECT_EQ(results[rank].code, 0) << results[rank].err;
      EXPECT_EQ(results[rank].out, met(static_cast<int>(rank), static_cast<int>(results.size())));
    }
  }
};

INSTANTIATE_TEST_SUITE_P(Over, Meetings, testing::Values("auto", "tcp", "gloo"),
                         [](const auto& each) { return std::string(each.param); });

TEST_P(Meetings, OfOneProcessInTheStoreOfTheLauncher) {
  const Result result = run(zero(joined({"launch", "-n", "4"}, kMeetsAgain)), transport());
  EXPECT_EQ(result.code, 0) << result.err;
  for (int rank = 0; rank < 4; ++rank) EXPECT_EQ(said_by(rank, result.out), met(rank, 4));
}

TEST_P(Meetings, OfOneProcessInTheStoreOfRankZero) {
  const Port port;
  std::vector<Variables> ranks;
  for (int rank = 0; rank < 3; ++rank) ranks.push_back(with(rank_variables(rank, 3, port.number()), transport()));
  expect_met(ranks);
}

TEST_P(Meetings, OfOneProcessThroughAFile) {
  const procs::Folder folder;
  std::vector<Variables> ranks;
  for (const char* rank : {"0", "1"})
    ranks.push_back(with({{"SLURM_PROCID", rank},
                          {"SLURM_NTASKS", "2"},
                          {"SLURM_LOCALID", rank},
                          {"SLURM_NNODES", "1"},
                          {"SLURM_JOB_ID", "1"},
                          {"SLURM_STEP_ID", "0"},
                          {"TMPDIR", folder.path("")}},
                         transport()));
  expect_met(ranks);
}

// No launcher says so, or says otherwise.
TEST_P(Meetings, OfRanksThatTheProgramItselfStarts) {
  for (const char* host : {"127.0.0.1", "localhost"})
    for (const char* store : {"made", "found"}) {
      SCOPED_TRACE(testing::Message() << host << ", " << store);
      const Port port;
      std::vector<std::unique_ptr<Program>> ranks;
      for (const char* rank : {"0", "1", "2"})
        ranks.push_back(std::make_unique<Program>(joined(kMeetsAgain, {rank, "3", host, port.number(), store}),
                                                  with(transport(), {{"SLURM_PROCID", "7"}, {"SLURM_NTASKS", "8"}})));
      for (int rank = 0; rank < 3; ++rank) {
        const Result result = ranks[static_cast<std::size_t>(rank)]->finish();
        EXPECT_EQ(result.code, 0) << result.err;
        EXPECT_EQ(result.out, met(rank, 3, 5));
      }
    }
}

// The addresses at which a process listens for TCP connections, as the kernel writes them.
std::multiset<std::string> listens_at(pid_t process) {
  constexpr const char* kListen = "0A";
  const std::string own = "/proc/" + std::to_string(process);
  std::set<std::string> sockets;
  for (const auto& fd : std::filesystem::directory_iterator(own + "/fd")) {
    std::error_code gone;
    const std::string target = std::filesystem::read_symlink(fd.path(), gone);
    if (target.starts_with("socket:[")) sockets.insert(target.substr(8, target.size() - 9));
  }
  std::multiset<std::string> addresses;
  for (const char* table : {"/net/tcp", "/net/tcp6"}) {
    std::istringstream lines(procs::read_all(own + table));
    for (std::string line; std::getline(lines, line);) {
      std::istringstream words(line);
      const std::vector<std::string> fields{std::istream_iterator<std::string>(words), {}};
      if (fields.size() > 9 && fields[3] == kListen && sockets.contains(fields[9]))
        addresses.insert(fields[1].substr(0, fields[1].find(':')));
    }
  }
  return addresses;
}

const std::set<std::string> kLoopback{"0100007F", "00000000000000000000000001000000"};

// How many sockets the process listens at, none of them for other hosts.
std::size_t expect_only_loopback(pid_t process) {
  const auto addresses = listens_at(process);
  for (const std::string& address : addresses) EXPECT_TRUE(kLoopback.contains(address)) << address;
  return addresses.size();
}

TEST_P(Meetings, OfOneHostAreOpenToThatHostOnly) {
  Program launcher(zero(joined({"launch", "-n", "2"}, kTrainsOn)), transport());
  for (int rank = 0; rank < 2; ++rank) EXPECT_TRUE(contains(launcher.line(), "joined"));
  EXPECT_EQ(expect_only_loopback(launcher.pid()), 1u);
  for (int rank = 0; rank < 2; ++rank) {
    const pid_t process = procs::rank_of(launcher.pid(), rank);
    ASSERT_NE(process, 0);
    expect_only_loopback(process);
  }
}

TEST_P(Meetings, OfOneHostInTheStoreOfRankZeroAreOpenToThatHostOnly) {
  for (const char* host : {"127.0.0.1", "localhost"}) {
    const Port port;
    const auto rank = [&](int number) {
      return std::make_unique<Program>(
          kTrainsOn, with(with(rank_variables(number, 2, port.number()), transport()), {{"MASTER_ADDR", host}}));
    };
    const std::unique_ptr<Program> ranks[] = {rank(0), rank(1)};
    for (const auto& each : ranks) EXPECT_EQ(each->line(), "joined");
    EXPECT_GE(expect_only_loopback(ranks[0]->pid()), 1u);
    expect_only_loopback(ranks[1]->pid());
  }
}

TEST(Hosts, ThatAreSeveralDoNotMeetOnALoopbackInterface) {
  const Port port;
  const Variables apart{{"LOCAL_WORLD_SIZE", "1"}, {"LOCAL_RANK", "0"}};
  const Result result = run(kTrainsOn, with(rank_variables(0, 2, port.number()), apart));
  EXPECT_EQ(result.code, 1);
  EXPECT_TRUE(contains(result.err, "ConfigError: rank 0: \"127.0.0.1\" is this host's loopback address")) << result.err;
  EXPECT_TRUE(contains(result.err, "MASTER_ADDR")) << result.err;
}

}  // namespace meetings_test
