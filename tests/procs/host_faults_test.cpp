// Hosts that are lost while a run trains: the ranks of the others say which, and no process of the run stays.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <regex>

#include "procs/nothing_stays.h"
#include "procs/virtual_hosts.h"

namespace host_faults_test {

using procs::contains;
using procs::joined;
using procs::NothingStays;
using procs::Program;
using procs::Result;
using procs::said_by;
using procs::VirtualHosts;
using procs::Words;
using procs::zero;

constexpr int kHosts = 2, kRanksPerHost = 2;
constexpr int kShortest = 3, kLongest = 1000;  // seconds that an operation waits

class LostHosts : public NothingStays {
 protected:
  void SetUp() override {
    if (const std::string fault = VirtualHosts::fault(); !fault.empty())
      GTEST_SKIP() << "no hosts of one's own here: " << fault;
  }

  // Trains until it is lost: what it says once `lose` has made that so. With a time limit in which all ranks meet,
  // longer where the machine is slow.
  Result loses(const VirtualHosts& hosts, const std::function<void()>& lose, const Words& options = {}) {
    const Words launch = hosts.launch(std::to_string(kRanksPerHost), folder_.path("agent"));
    // What ends them is their own error, not the signal by which a launcher ends those that are left.
    const Words deaf{"sh", "-c", "trap '' TERM; exec \"$@\"", "sh"};
    const Words train = joined(zero({"train"}), folder_.small(joined({"--steps", "20000"}, options)));
    for (int seconds = kShortest;; seconds *= 2) {
      procs::Variables environment = variables();
      environment["ZERO_TIMEOUT"] = std::to_string(seconds);
      Program program(zero(joined(launch, joined(deaf, train))), environment);
      const bool trains = steps(program);
      if (trains) lose();
      const Result result = program.finish();
      while (!left().empty()) ::usleep(1000);
      if (trains || seconds > kLongest) return result;
    }
  }

  void signal_rank(int rank, int signal) const {
    const std::vector<pid_t> ours = left();
    for (const pid_t process : procs::processes_with("RANK", std::to_string(rank)))
      if (std::ranges::count(ours, process) > 0) ::kill(process, signal);
  }

  void signal_ranks_on(int host, int signal) const {
    for (int rank = host * kRanksPerHost; rank < (host + 1) * kRanksPerHost; ++rank) signal_rank(rank, signal);
  }

  // The error of a rank names who is lost: one of `lost`, with the address of its host where that is another.
  static void expect_named(const Result& result, int rank, const std::string& lost, int host) {
    const std::string said = said_by(rank, result.err);
    const std::string address = rank / kRanksPerHost == host ? "" : " at " + VirtualHosts::address(host);
    const std::regex named("zero: rank " + std::to_string(rank) + ": .*rank " + lost + address + "[ ,]");
    EXPECT_TRUE(std::regex_search(said, named)) << "rank " << rank << " said: " << said << "of\n" << result.err;
  }
  static void expect_named_on(int host, const Result& result, const std::string& lost) {
    EXPECT_NE(result.code, 0);
    for (int rank = host * kRanksPerHost; rank < (host + 1) * kRanksPerHost; ++rank)
      expect_named(result, rank, lost, 1 - host);
  }

 private:
  // Whether it comes to a step before it ends.
  static bool steps(Program& program) {
    for (;;) {
      const std::string line = program.line();
      if (contains(line, "] step ")) return true;
      if (line.empty() && program.ends_within({})) return false;
    }
  }

  const procs::Folder folder_;
};

// Each host is lost to the other.
TEST_F(LostHosts, OfALinkThatIsDownAreNamed) {
  const VirtualHosts hosts(kHosts);
  const Result result = loses(hosts, [&] { hosts.cut(1); });
  expect_named_on(0, result, "[23]");
  expect_named_on(1, result, "[01]");
}

// By the launcher there, and by who waits for them, at once.
TEST_F(LostHosts, WhoseRanksAreKilledAreNamed) {
  const VirtualHosts hosts(kHosts);
  const Result result = loses(hosts, [&] { signal_ranks_on(1, SIGKILL); });
  expect_named_on(0, result, "[23]");
  const std::regex killed("zero: on " + VirtualHosts::address(1) + ": .*rank [23] was killed by signal 9 \\(Killed\\)");
  EXPECT_TRUE(std::regex_search(result.err, killed)) << result.err;
}

// Whose memory and streams take no more.
TEST_F(LostHosts, WhoseRanksStandStillAreNamed) {
  const VirtualHosts hosts(kHosts);
  expect_named_on(0, loses(hosts, [&] { signal_ranks_on(1, SIGSTOP); }), "[23]");
}

// Whoever waits for it, or for a rank that does: on its host, on the other, and there for a neighbour.
class LostRanks : public LostHosts {
 protected:
  void expect_told(int rank, int signal, const Words& options) {
    SCOPED_TRACE("rank " + std::to_string(rank) + " under " + options.at(1));
    const VirtualHosts hosts(kHosts);
    const Result result = loses(
        hosts, [&] { signal_rank(rank, signal); }, options);
    EXPECT_NE(result.code, 0);
    for (int survivor = 0; survivor < kHosts * kRanksPerHost; ++survivor)
      if (survivor != rank) expect_named(result, survivor, std::to_string(rank), rank / kRanksPerHost);
  }
};

TEST_F(LostRanks, ThatStandStillAreNamedByAll) {
  expect_told(2, SIGSTOP, {"--plan", "zero3"});
  expect_told(3, SIGSTOP, {"--plan", "zero3"});
  expect_told(2, SIGSTOP, {"--plan", "hybrid", "--shard-ranks", "2"});
  expect_told(3, SIGSTOP, {"--plan", "ddp"});
}

TEST_F(LostRanks, ThatAreKilledAreNamedByAll) {
  expect_told(3, SIGKILL, {"--plan", "zero3"});
  expect_told(2, SIGKILL, {"--plan", "hybrid", "--shard-ranks", "2"});
}

}  // namespace host_faults_test
