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
const char* const kPatience = "3";  // seconds that an operation waits

class LostHosts : public NothingStays {
 protected:
  void SetUp() override {
    if (const std::string fault = VirtualHosts::fault(); !fault.empty())
      GTEST_SKIP() << "no hosts of one's own here: " << fault;
  }

  // Trains until it is lost: what it says once `lose` has made that so.
  Result loses(const VirtualHosts& hosts, const std::function<void()>& lose) {
    const Words launch = hosts.launch(std::to_string(kRanksPerHost), folder_.path("agent"));
    procs::Variables environment = variables();
    environment["ZERO_TIMEOUT"] = kPatience;
    // What ends them is their own error, not the signal by which a launcher ends those that are left.
    const Words deaf{"sh", "-c", "trap '' TERM; exec \"$@\"", "sh"};
    const Words train = joined(zero({"train"}), folder_.small({"--steps", "20000"}));
    Program program(zero(joined(launch, joined(deaf, train))), environment);
    while (!contains(program.line(), "] step ")) {
    }
    lose();
    const Result result = program.finish();
    while (!left().empty()) ::usleep(1000);
    return result;
  }

  // Processes of ranks on that host.
  std::vector<pid_t> ranks_on(int host) const {
    std::vector<pid_t> ranks;
    const std::vector<pid_t> ours = left();
    for (int rank = host * kRanksPerHost; rank < (host + 1) * kRanksPerHost; ++rank)
      for (const pid_t process : procs::processes_with("RANK", std::to_string(rank)))
        if (std::ranges::count(ours, process) > 0) ranks.push_back(process);
    return ranks;
  }

  // A rank of the first host names one of the second, with its address and what came of it; one that waits for that
  // rank inside the host says so.
  static void expect_the_second_named(const Result& result) {
    EXPECT_NE(result.code, 0);
    bool named = false;
    for (int rank = 0; rank < kRanksPerHost; ++rank) {
      const std::string said = said_by(rank, result.err), self = "zero: rank " + std::to_string(rank) + ": ";
      const std::regex here(self + ".*: rank [01] (did not a[a-z]+ within 3000 ms|left the group|died|failed)");
      const std::regex there(self + ".* over tcp: rank [23] at " + VirtualHosts::address(1) +
                             " did not answer within 3000 ms");
      const bool names = std::regex_search(said, there);
      EXPECT_TRUE(names || std::regex_search(said, here)) << said << "of\n" << result.err;
      named = named || names;
    }
    EXPECT_TRUE(named) << result.err;
  }

 private:
  const procs::Folder folder_;
};

TEST_F(LostHosts, OfALinkThatIsDownAreNamed) {
  const VirtualHosts hosts(kHosts);
  expect_the_second_named(loses(hosts, [&] { hosts.cut(1); }));
}

// By the launcher there, at once: it ends the others, who need no time limit.
TEST_F(LostHosts, WhoseRanksAreKilledAreNamed) {
  const VirtualHosts hosts(kHosts);
  const Result result = loses(hosts, [&] {
    for (const pid_t rank : ranks_on(1)) ::kill(rank, SIGKILL);
  });
  EXPECT_NE(result.code, 0);
  const std::regex killed("zero: on " + VirtualHosts::address(1) + ": .*rank [23] was killed by signal 9 \\(Killed\\)");
  EXPECT_TRUE(std::regex_search(result.err, killed)) << result.err;
}

// Whose memory and streams take no more.
TEST_F(LostHosts, WhoseRanksStandStillAreNamed) {
  const VirtualHosts hosts(kHosts);
  const Result result = loses(hosts, [&] {
    for (const pid_t rank : ranks_on(1)) ::kill(rank, SIGSTOP);
  });
  expect_the_second_named(result);
}

}  // namespace host_faults_test
