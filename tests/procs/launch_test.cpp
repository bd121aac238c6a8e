// `zero launch` towards whoever reads its output, ends its processes, or limits what it may have.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <regex>

#include "procs/nothing_stays.h"

namespace launch_test {

using procs::contains;
using procs::Folder;
using procs::joined;
using procs::NothingStays;
using procs::Program;
using procs::Result;
using procs::run;
using procs::Words;
using procs::zero;

const std::string kDay = "86400";

// A shell that does `script`, in which $0 is the program `zero`.
Words shell(const std::string& script) {
  return {"sh", "-c", script, procs::kZero};
}

class AReaderThatStalls : public NothingStays {
 protected:
  // Both outputs are the pipe that is not read.
  Program writer_{shell("exec \"$0\" launch -n 2 --grace 0.1 yes 2>&1"), variables()};
};

TEST_F(AReaderThatStalls, DoesNotKeepSignalsFromActing) {
  writer_.stall();
  ::kill(writer_.pid(), SIGTERM);
  expect_ends(writer_);
  EXPECT_EQ(writer_.finish().code, 128 + SIGTERM);
}

TEST_F(AReaderThatStalls, DoesNotKeepADeadRankFromEndingTheOthers) {
  writer_.stall();
  ::kill(rank_of(writer_, 1), SIGKILL);
  expect_ends(writer_);
  EXPECT_EQ(writer_.finish().code, 128 + SIGKILL);
}

class Launched : public NothingStays {};

TEST_F(Launched, AReaderThatStallsIsSaidToHaveLostOutput) {
  Program program(zero({"launch", "-n", "2", "--grace", "0.1", "yes"}), variables());
  program.stall();
  ::kill(program.pid(), SIGINT);
  expect_ends(program);
  const Result result = program.finish();
  EXPECT_EQ(result.code, 128 + SIGINT);
  EXPECT_EQ(result.err,
            "zero: stopped by signal 2 (Interrupt)\n"
            "zero: what the ranks wrote last is lost: nobody read it within the grace period\n");
}

TEST_F(Launched, AReaderThatIsLateGetsAll) {
  Program program(zero({"launch", "-n", "1", "seq", "50000"}), variables());
  program.stall();
  while (left().size() > 1) ::usleep(1000);
  std::string expected;
  for (int i = 1; i <= 50000; ++i) expected += "[0] " + std::to_string(i) + "\n";
  const Result result = program.finish();
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_TRUE(result.out == expected) << result.out.size() << " bytes, not " << expected.size();
}

TEST_F(Launched, AReaderThatLeavesEndsTheRanks) {
  const Result result = run(shell("{ \"$0\" launch -n 2 yes; echo code $? >&2; } | head -n 1"), variables());
  EXPECT_EQ(result.out.substr(4), "y\n");
  EXPECT_EQ(result.err, "zero: stopped by signal 13 (Broken pipe)\ncode 141\n");
}

TEST_F(Launched, OutputThatCannotBeWrittenIsAFailureAndSaidOnce) {
  for (const auto& [where, why] :
       {std::pair{">/dev/full", "No space left on device"}, {">&-", "Bad file descriptor"}}) {
    const Result result =
        run(shell(std::string("exec \"$0\" launch -n 2 sh -c 'echo a; echo b' ") + where), variables());
    EXPECT_EQ(result.code, 1) << where;
    EXPECT_EQ(result.err,
              std::string("zero: cannot write to standard output: ") + why + "; what the ranks write there is lost\n");
  }
}

class Sessions : public NothingStays, public testing::WithParamInterface<const char*> {};
INSTANTIATE_TEST_SUITE_P(EndOf, Sessions, testing::Values("0", "3"));

TEST_P(Sessions, TheRanksStartedEndWithThem) {
  const Folder folder;
  const std::string fifo = folder.path("fifo");
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  const std::string code = GetParam();
  const Result result = run(zero({"launch", "-n", "2", "sh", "-c",
                                  "[ $RANK = 1 ] || exit 0; setsid sh -c 'echo >" + fifo +
                                      "; exec sleep 3600' & read x <" + fifo + "; exit " + code}),
                            variables());
  EXPECT_EQ(result.code, std::stoi(code));
  EXPECT_TRUE(left().empty());
}

const std::string kFamily =
    "setsid sh -c 'echo; exec sleep 3600' & sh -c 'echo; exec sleep 3600'; echo survived a sleep of an hour";

TEST_F(Launched, ProcessesDieWithALauncherThatIsKilled) {
  Program program(zero({"launch", "-n", "2", "sh", "-c", kFamily}), variables());
  for (int i = 0; i < 4; ++i) program.line();
  ::kill(program.pid(), SIGKILL);
  const Result result = program.finish();
  EXPECT_EQ(result.code, -SIGKILL);
  EXPECT_FALSE(contains(result.out, "survived"));
}

TEST_F(Launched, ProcessesDieWithAKeeperThatIsKilled) {
  Program program(zero({"launch", "-n", "2", "sh", "-c", kFamily}), variables());
  for (int i = 0; i < 4; ++i) program.line();
  ::kill(keeper_of(program), SIGKILL);
  const Result result = program.finish();
  EXPECT_EQ(result.code, 1);
  EXPECT_EQ(result.err, "zero: the process that looks after the ranks was killed by signal 9, and the ranks with it\n");
  EXPECT_TRUE(left().empty());
}

TEST_F(Launched, RanksThatEndWellOnASignalWereStopped) {
  const auto stopped = [&](const std::string& code, int signal) {
    Program program(
        zero({"launch", "-n", "2", "sh", "-c", "trap 'exit " + code + "' TERM HUP; echo ready; sleep 3600 & wait"}),
        variables());
    for (int i = 0; i < 2; ++i) program.line();
    ::kill(program.pid(), signal);
    return program.finish();
  };
  const Result well = stopped("0", SIGTERM);
  EXPECT_EQ(well.code, 128 + SIGTERM);
  EXPECT_EQ(well.err, "zero: stopped by signal 15 (Terminated)\n");
  const Result badly = stopped("5", SIGHUP);
  EXPECT_EQ(badly.code, 5);
  EXPECT_TRUE(std::regex_match(
      badly.err, std::regex("zero: stopped by signal 1 \\(Hangup\\); rank [01] failed with exit code 5\n")))
      << badly.err;
}

// Whoever ends a run, or wants something of its ranks, sees its processes and not which of them starts the others.
TEST_F(Launched, SignalsToTheKeeperAreTheLaunchers) {
  for (const int signal : {SIGTERM, SIGHUP, SIGINT}) {
    Program program(zero({"launch", "-n", "2", "sh", "-c",
                          "trap 'echo usr1' USR1; trap 'exit 0' TERM HUP INT; echo ready; "
                          "tail -f /dev/null & while :; do wait; done"}),
                    variables());
    for (int i = 0; i < 2; ++i) EXPECT_TRUE(contains(program.line(), "ready"));
    ::kill(keeper_of(program), SIGUSR1);
    for (int i = 0; i < 2; ++i) EXPECT_TRUE(contains(program.line(), "usr1"));
    ::kill(keeper_of(program), signal);
    const Result result = program.finish();
    EXPECT_EQ(result.code, 128 + signal);
    EXPECT_TRUE(contains(result.err, "zero: stopped by signal " + std::to_string(signal))) << result.err;
  }
}

// A second one would cut the time short that ranks have for their last step. Of the launcher's two, the first is heard
// as the keeper's is.
TEST_F(Launched, ASignalToAllProcessesIsOne) {
  Program program(zero({"launch", "-n", "1", "--no-prefix", "sh", "-c",
                        "trap 'echo usr1' USR1; trap 'echo usr2' USR2; trap 'exit 0' TERM; echo ready; "
                        "tail -f /dev/null & while :; do wait; done"}),
                  variables());
  EXPECT_EQ(program.line(), "ready");
  const pid_t keeper = keeper_of(program);
  ::kill(program.pid(), SIGUSR1);
  EXPECT_EQ(program.line(), "usr1");
  ::kill(keeper, SIGUSR1);
  ::kill(keeper, SIGUSR2);  // the keeper tells of the lower number first
  EXPECT_EQ(program.line(), "usr2");
  ::kill(program.pid(), SIGUSR2);
  ::kill(program.pid(), SIGUSR1);
  EXPECT_EQ(program.line(), "usr1") << "the launcher's second";
  ::kill(program.pid(), SIGTERM);
  EXPECT_EQ(program.finish().code, 128 + SIGTERM);
}

TEST_F(Launched, ARankThatIsStoppedEndsAtOnceWhenTold) {
  Program program(zero({"launch", "-n", "1", "--grace", kDay, "sh", "-c", "kill -STOP $$; sleep 3600"}), variables());
  const pid_t rank = rank_of(program, 0);
  while (!procs::status_of(rank, "State").starts_with("T")) ::usleep(1000);
  ::kill(program.pid(), SIGTERM);
  expect_ends(program);
  EXPECT_EQ(program.finish().code, 128 + SIGTERM);
}

TEST_F(Launched, ProgramsAfterTwoHyphensAreTakenAsTheyAre) {
  EXPECT_EQ(run(zero({"launch", "-n", "1", "--", "echo", "hi"})).out, "[0] hi\n");
  EXPECT_EQ(run(zero({"launch", "-n", "1", "--", "echo", "--", "-n", "--help"})).out, "[0] -- -n --help\n");
  EXPECT_EQ(run(zero({"launch", "-n", "1", "echo", "-n", "--", "--", "a"})).out, "[0] -- -- a\n");
  const Result none = run(zero({"launch", "-n", "1", "--"}));
  EXPECT_EQ(none.code, 2);
  EXPECT_TRUE(contains(none.err, "no program to start")) << none.err;
}

TEST_F(Launched, ProgramsAreInTheUsageLine) {
  EXPECT_TRUE(
      std::regex_search(run(zero({"launch", "--help"})).out, std::regex("Usage: .*launch \\[OPTIONS\\] PROGRAM")));
}

TEST_F(Launched, TooFewFilesAreSaidWithTheRankAndTheLimit) {
  const Result result = run(shell("ulimit -n 20; exec \"$0\" launch -n 16 true"), variables());
  EXPECT_EQ(result.code, 1);
  EXPECT_TRUE(std::regex_match(result.err, std::regex("zero: cannot open the pipes of rank [0-9]+ of 16: Too many open "
                                                      "files \\(start fewer ranks, or raise the limit on open files: "
                                                      "ulimit -n \\(now 20\\)\\)\n")))
      << result.err;
}

// Of a launcher that has its own files alone.
TEST_F(Launched, TooFewFilesForTheStoreAreSaidToo) {
  const char* const script =
      "for fd in {3..30}; do eval \"exec $fd>&-\"; done; ulimit -n 18; exec \"$0\" train --model micro --steps 1 -n 2";
  const Result result = run({"bash", "-c", script, procs::kZero}, variables());
  EXPECT_EQ(result.code, 1);
  EXPECT_TRUE(contains(result.err, "cannot serve the store in which the ranks meet: Too many open files"))
      << result.err;
  EXPECT_TRUE(contains(result.err, "ulimit -n (now 18)")) << result.err;
}

TEST_F(Launched, RanksHaveTheLimitOnFilesThatTheLauncherWasGiven) {
  const Result result = run(shell("ulimit -Sn 24; exec \"$0\" launch -n 16 sh -c 'ulimit -Sn'"), variables());
  EXPECT_EQ(result.code, 0) << result.err;
  for (int rank = 0; rank < 16; ++rank) EXPECT_EQ(procs::said_by(rank, result.out), "24\n");
}

TEST_F(Launched, RanksDieOfAFileThatIsTooLargeAndZeroSaysSo) {
  const Folder folder;
  const std::string file = folder.path("large");
  const Result killed = run(
      shell("ulimit -f 1; exec \"$0\" launch -n 1 sh -c 'exec head -c 100000 /dev/zero >" + file + "'"), variables());
  EXPECT_EQ(killed.code, 128 + SIGXFSZ);
  EXPECT_EQ(killed.err, "zero: rank 0 was killed by signal 25 (File size limit exceeded)\n");
  const std::string plan = folder.path("plan.json");
  const Result ours = run(
      shell("ulimit -f 0; exec \"$0\" plan --model micro --ranks 2 --device-memory 1GB --fit --out " + plan + " 2>&1"));
  EXPECT_EQ(ours.code, 1);
  EXPECT_TRUE(contains(ours.out, "zero: cannot write '" + plan + "': File too large\n")) << ours.out;
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path("")), {}), 2)
      << "the text and the rank's file";
}

}  // namespace launch_test
