// `zero launch --hosts`: a launcher on each host, as if each had been started by hand. The other host is this one, by
// an agent that gives a shell nothing of our environment, as ssh does.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <sstream>

#include "procs/nothing_stays.h"

namespace launch_hosts_test {

using procs::contains;
using procs::Folder;
using procs::joined;
using procs::NothingStays;
using procs::Program;
using procs::read_all;
using procs::Result;
using procs::run;
using procs::said_by;
using procs::Words;
using procs::zero;

class OverHosts : public NothingStays {
 protected:
  OverHosts() {
    std::ofstream(agent_) << "#!/bin/sh\necho \"$1\" >>" << reached_ << "\nshift\nexec env -i sh -c \"$*\"\n";
    std::filesystem::permissions(agent_, std::filesystem::perms::owner_all);
  }

  Words launch(const Words& more, const std::string& hosts = "localhost,far") const {
    return zero(joined({"launch", "--hosts", hosts, "--master", "127.0.0.1", "--agent", agent_}, more));
  }

  Result result_of(const Words& more) const { return run(launch(more), variables()); }

  // The processes that `zero launch --hosts` here has for the hosts.
  static pid_t agent_of(const Program& program, int host) { return rank_of(program.pid(), host); }

  const Folder folder_;
  const std::string agent_ = folder_.path("agent"), reached_ = folder_.path("reached");
};

TEST_F(OverHosts, RanksAreNumberedHostByHostAndKnowTheToken) {
  const Result result = result_of({"-n", "2", "sh", "-c",
                                   "echo $RANK of $WORLD_SIZE, $LOCAL_RANK of $LOCAL_WORLD_SIZE, on $GROUP_RANK, "
                                   "$ZERO_TOKEN $MASTER_ADDR:$MASTER_PORT"});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(result.err, "");
  std::istringstream words(said_by(0, result.out));
  const std::vector<std::string> first{std::istream_iterator<std::string>(words), {}};
  ASSERT_EQ(first.size(), 10U) << result.out;
  const std::string& token = first[8];
  EXPECT_EQ(token.size(), 32U);
  for (int rank = 0; rank < 4; ++rank) {
    const std::string here = std::to_string(rank % 2) + " of 2, on " + std::to_string(rank / 2);
    EXPECT_EQ(said_by(rank, result.out), std::to_string(rank) + " of 4, " + here + ", " + token + " 127.0.0.1:29500\n");
  }
  EXPECT_EQ(read_all(reached_), "far\n") << "this host needs no agent";
}

TEST_F(OverHosts, WordsAndWhereTheyAreSaidArriveAsTheyAre) {
  const std::string script = "printf '%s\\n' \"$0\"; pwd";
  const std::string odd = "it's \"$HOME\" `*`  ; \\n";
  const Result result = result_of({"-n", "1", "--no-prefix", "sh", "-c", script, odd});
  const std::string once = run({"sh", "-c", script, odd}).out;
  EXPECT_EQ(result.out.size(), 2 * once.size());
  for (const std::string& line : {odd, std::filesystem::current_path().string()})
    EXPECT_TRUE(contains(result.out, line + "\n")) << result.out;
}

TEST_F(OverHosts, VariablesOfTheRunTravelAndOthersWhenNamed) {
  const Words print{"-n", "1", "sh", "-c", "echo $ZERO_TIMEOUT/$OMP_NUM_THREADS/$MINE/$OTHER"};
  procs::Variables here = variables();
  for (const auto& [name, value] :
       {std::pair("ZERO_TIMEOUT", "70"), {"OMP_NUM_THREADS", "3"}, {"MINE", "a b"}, {"OTHER", "c"}})
    here[name] = value;
  EXPECT_EQ(said_by(1, run(launch(print), here).out), "70/3//\n");
  EXPECT_EQ(said_by(1, run(launch(joined({"--export", "X,MINE"}, print)), here).out), "70/3/a b/\n");
  const Words before{"-n", "1", "--export", "MINE", "sh", "-c", "echo $MINE"};
  EXPECT_EQ(said_by(1, run(launch(before), here).out), "a b\n") << "the program follows";
  here["LONG"] = std::string(100'000, 'x');  // more than a pipe holds
  EXPECT_EQ(said_by(1, run(launch({"-n", "1", "--export", "LONG", "sh", "-c", "echo ${#LONG}"}), here).out),
            "100000\n");
}

TEST_F(OverHosts, ARankThatFailsEndsThoseOfAllHostsAndItsCodeIsTheRuns) {
  const Result result = result_of({"-n", "2", "sh", "-c", "[ $RANK = 3 ] && exit 7; exec sleep 3600"});
  EXPECT_EQ(result.code, 7);
  for (const char* said :
       {"zero: on far: rank 3 failed with exit code 7\n", "zero: on localhost: stopped by signal 15 (Terminated)\n",
        "zero: the launcher on far failed with exit code 7\n"})
    EXPECT_TRUE(contains(result.err, said)) << result.err;
}

TEST_F(OverHosts, AHostThatCannotBeReachedIsNamed) {
  std::ofstream(agent_) << "#!/bin/sh\necho \"no way to $1\" >&2\nexit 255\n";
  const Result refused = result_of({"-n", "1", "sleep", "3600"});
  EXPECT_EQ(refused.code, 255);
  EXPECT_TRUE(contains(refused.err, "no way to far\n")) << refused.err;
  EXPECT_TRUE(contains(refused.err, "zero: the launcher on far failed with exit code 255\n")) << refused.err;
  std::filesystem::remove(agent_);
  const Result missing = result_of({"-n", "1", "sleep", "3600"});
  EXPECT_EQ(missing.code, 127);
  EXPECT_TRUE(contains(missing.err, "cannot start '" + agent_ + "': No such file or directory")) << missing.err;
}

TEST_F(OverHosts, SignalsReachTheRanksOfAllHosts) {
  Program program(launch({"-n", "1", "sh", "-c",
                          "trap 'echo usr1' USR1; trap 'exit 0' TERM; echo ready; tail -f /dev/null & "
                          "while :; do wait; done"}),
                  variables());
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(contains(program.line(), "ready"));
  ::kill(program.pid(), SIGUSR1);
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(contains(program.line(), "usr1"));
  ::kill(program.pid(), SIGTERM);
  const Result result = program.finish();
  EXPECT_EQ(result.code, 128 + SIGTERM);
  EXPECT_TRUE(contains(result.err, "\nzero: stopped by signal 15 (Terminated)\n")) << result.err;
}

// As when the connection closes: of a launcher that is no child of what gives the orders.
TEST_F(OverHosts, ALauncherWhoseOrdersEndEndsItsRanks) {
  const std::string first = folder_.path("first"), second = folder_.path("second");
  for (const std::string& fifo : {first, second}) ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  const char* const script =
      "{ printf 'zero orders 1\\0\\0'; read x <$1; printf '\\012'; read x <$2; } | "
      "\"$0\" launch --orders far -n 1 --grace 0.1 "
      "sh -c \"trap 'echo usr1' USR1; trap '' HUP; echo ready; tail -f /dev/null & while :; do wait; done\"";
  Program program({"sh", "-c", script, procs::kZero, first, second}, variables());
  EXPECT_EQ(program.line(), "[0] ready");
  std::ofstream(first) << "go on\n";
  EXPECT_EQ(program.line(), "[0] usr1");
  std::ofstream(second) << "end\n";
  const Result result = program.finish();
  EXPECT_EQ(result.code, 128 + SIGHUP);
  EXPECT_EQ(result.err, "zero: on far: stopped by signal 1 (Hangup)\n");
}

TEST_F(OverHosts, AnAgentThatIsKilledIsNamed) {
  Program program(launch({"-n", "1", "--grace", "0.1", "sh", "-c", "trap '' TERM HUP; echo ready; exec sleep 3600"}),
                  variables());
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(contains(program.line(), "ready"));
  ::kill(agent_of(program, 1), SIGKILL);
  const Result result = program.finish();
  EXPECT_EQ(result.code, 128 + SIGKILL);
  EXPECT_TRUE(contains(result.err, "zero: the launcher on far was killed by signal 9 (Killed)\n")) << result.err;
  while (!left().empty()) ::usleep(1000);
}

TEST_F(OverHosts, ItsRanksDieWithALauncherThatIsKilled) {
  Program program(launch({"-n", "1", "--grace", "0.1", "sh", "-c", "trap '' TERM HUP; echo ready; exec sleep 3600"}),
                  variables());
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(contains(program.line(), "ready"));
  ::kill(program.pid(), SIGKILL);
  EXPECT_EQ(program.finish().code, -SIGKILL);
  while (!left().empty()) ::usleep(1000);
}

TEST_F(OverHosts, AllAreStartedAgainWhenOneFails) {
  const Result result = result_of({"-n", "1", "--restarts", "1", "sh", "-c",
                                   "echo start $TORCHELASTIC_RESTART_COUNT; [ $TORCHELASTIC_RESTART_COUNT = 1 ] && "
                                   "exit 0; [ $RANK = 1 ] && exit 7; exec sleep 3600"});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_TRUE(contains(said_by(1, result.out), "start 0\nstart 1\n")) << result.out;
  EXPECT_TRUE(contains(result.err, "all ranks are started again, restart 1 of 1")) << result.err;
}

TEST_F(OverHosts, AFileSaysHowManyRanksEachHas) {
  std::ofstream(folder_.path("hosts")) << "# of this run\nlocalhost slots=2  # here\n\nuser@far slots=2\n";
  const Result result = run(launch({"sh", "-c", "echo $RANK of $WORLD_SIZE"}, folder_.path("hosts")), variables());
  EXPECT_EQ(result.code, 0) << result.err;
  for (int rank = 0; rank < 4; ++rank)
    EXPECT_EQ(said_by(rank, result.out), std::to_string(rank) + " of 4\n") << result.err;
  EXPECT_EQ(read_all(reached_), "user@far\n");
}

TEST_F(OverHosts, AFileThatIsNoListIsSaidWithItsLine) {
  const std::string file = folder_.path("hosts");
  const auto said = [&](const std::string& text) {
    std::ofstream(file) << text;
    const Result result = run(launch({"-n", "1", "true"}, file));
    EXPECT_EQ(result.code, 2) << text;
    return result.err;
  };
  for (const auto& [text, fault] : {std::pair("a\nb 4\n", "hosts', line 2: a line is HOST or HOST slots=N"),
                                    {"a slots=4 b\n", "hosts', line 1: a line is HOST or HOST slots=N"},
                                    {"a slots=x\n", "hosts', line 1: slots: 'x' is not an integer"},
                                    {"-oProxyCommand=x\n", "hosts', line 1: '-oProxyCommand=x' is no host"},
                                    {"# none\n", "hosts' lists no host"}})
    EXPECT_TRUE(contains(said(text), fault)) << said(text);
}

// Whoever types the hidden option gets no further.
TEST_F(OverHosts, OrdersComeFromALauncherAlone) {
  for (const char* input : {"", "hello\\n", "zero orders 1\\0X"}) {
    const Result result =
        run({"sh", "-c", std::string("printf '") + input + "' | \"$0\" launch --orders a -n 1 true", procs::kZero});
    EXPECT_EQ(result.code, 2) << input;
    EXPECT_TRUE(contains(result.err, "standard input is not what zero launch --hosts writes")) << result.err;
  }
}

}  // namespace launch_hosts_test
