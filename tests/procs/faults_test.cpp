// What the other ranks, the launcher and the user see when a rank dies, strays or does not come. The ranks are those
// of victim.cpp; they stay until they have an error, so a rank that is left waiting is killed and says nothing.
#include <gtest/gtest.h>

#include <regex>

#include "procs/zero_program.h"

namespace {

using procs::contains;
using procs::joined;
using procs::Port;
using procs::rank_variables;
using procs::Result;
using procs::run;
using procs::run_together;
using procs::Variables;
using procs::with;
using procs::Words;
using procs::zero;

const std::string kVictim = ZERO_VICTIM;
const Variables kUnchecked{{"ZERO_CHECK", "0"}};
const Variables kChecked{{"ZERO_CHECK", "1"}};
const Variables kImpatient{{"ZERO_TIMEOUT", "2"}};
const std::string kGrace = "60";

// What rank `rank` wrote, in a prefixed output.
std::string said_by(int rank, const std::string& output) {
  const std::string prefix = "[" + std::to_string(rank) + "] ";
  std::istringstream lines(output);
  std::string text;
  for (std::string line; std::getline(lines, line);)
    if (line.starts_with(prefix)) text += line.substr(prefix.size()) + '\n';
  return text;
}

// The error of a rank whose collective failed: who it is, and in which operation.
void expect_names_rank_and_operation(int rank, const std::string& error) {
  static const std::string operations = "(all_gather|reduce_scatter|all_reduce|all_to_all|broadcast|barrier) #[0-9]+ ";
  const std::regex expected("^CommError: rank " + std::to_string(rank) + ": .*" + operations);
  EXPECT_TRUE(std::regex_search(error, expected)) << "rank " << rank << " said: " << error;
}

class Faults : public testing::Test {
 protected:
  ~Faults() override { EXPECT_EQ(orphanage_.survivors(), 0); }

  static Result victim(int ranks, const Words& fault, const Variables& variables = kUnchecked) {
    return run(zero(joined({"launch", "-n", std::to_string(ranks), "--grace", kGrace, kVictim}, fault)), variables);
  }

  static void expect_survivors_told(const Result& result, int victim) {
    for (int rank = 0; rank < 3; ++rank)
      if (rank != victim) expect_names_rank_and_operation(rank, said_by(rank, result.err));
  }

  static void expect_killed(int rank, const Words& fault, const Variables& variables = kUnchecked) {
    const Result result =
        victim(3, joined({fault.front(), std::to_string(rank)}, {fault.begin() + 1, fault.end()}), variables);
    EXPECT_EQ(result.code, 137);
    const std::string verdict = "zero: rank " + std::to_string(rank) + " was killed by signal 9 (Killed)\n";
    EXPECT_TRUE(contains(result.err, verdict)) << result.err;
    expect_survivors_told(result, rank);
  }

  static void expect_diverged(const Words& fault, const Words& each, const Variables& variables = kUnchecked) {
    const Result result = victim(3, fault, variables);
    EXPECT_EQ(result.code, 1);
    for (int rank = 0; rank < 3; ++rank) {
      const std::string error =
          std::regex_replace(said_by(rank, result.err), std::regex("operation [0-9]+"), "operation n");
      EXPECT_TRUE(error.starts_with("CommError: rank " + std::to_string(rank) + ": the ranks ")) << error;
      for (std::size_t other = 0; other < each.size(); ++other)
        EXPECT_TRUE(contains(error, "rank " + std::to_string(other) + each[other])) << error;
    }
  }

 private:
  procs::Orphanage orphanage_;
};

TEST_F(Faults, KilledInForward) {
  expect_killed(0, {"dies-in-forward", "zero3"});
  expect_killed(2, {"dies-in-forward", "ddp"}, kChecked);
}

TEST_F(Faults, KilledWhileItWaitsInACollective) {
  expect_killed(1, {"dies-in-collective", "zero3"});
  expect_killed(2, {"dies-in-collective", "zero2"}, kChecked);
}

TEST_F(Faults, KilledHalfWayThroughACollective) {
  expect_killed(1, {"dies-in-all-gather"});
}

TEST_F(Faults, KilledBetweenVoteAndUpdate) {
  expect_killed(2, {"dies-in-step", "zero3"});
  expect_killed(1, {"dies-in-step", "zero1"});
}

TEST_F(Faults, OneRankThrows) {
  const Result result = victim(3, {"throws-in-forward", "1"});
  EXPECT_TRUE(result.code == 3 || result.code == 1) << result.code;
  EXPECT_EQ(said_by(1, result.err), "exception: no such token\n");
  expect_survivors_told(result, 1);
}

TEST_F(Faults, OneRankEndsEarly) {
  const Result result = victim(3, {"leaves", "1"});
  EXPECT_EQ(result.code, 1);
  EXPECT_EQ(said_by(1, result.err), "");
  EXPECT_TRUE(std::regex_search(result.err, std::regex("zero: rank [02] failed with exit code 1\n"))) << result.err;
  expect_survivors_told(result, 1);
}

TEST_F(Faults, OneRankStopsAnswering) {
  const Result result = run(zero({"launch", "-n", "2", "--grace", "0.1", kVictim, "stops", "1"}), kImpatient);
  EXPECT_EQ(result.code, 1);
  expect_names_rank_and_operation(0, said_by(0, result.err));
  EXPECT_TRUE(contains(result.err, "2000 ms")) << result.err;
  EXPECT_TRUE(contains(result.err, "zero: rank 0 failed with exit code 1\n")) << result.err;
}

TEST_F(Faults, RanksThatCallDifferentOperations) {
  const std::string step = " wants, as operation n, to take a step";
  expect_diverged({"writes", "1"}, {step, " wants, as operation n, to read or write unit 'layers.0'", step});
  expect_diverged({"repeats-backward", "0"}, {" wants, as operation n, to reduce gradients of unit 'layers.2'"});
}

TEST_F(Faults, RanksThatCallDifferentCollectives) {
  expect_diverged({"calls-barrier", "1"}, {": all_reduce #2 (1 fp32)", ": barrier #2", ": all_reduce #2 (1 fp32)"},
                  kChecked);
}

TEST_F(Faults, RanksThatCallDifferentCollectivesUncheckedEndInTimeAndDoNotAbort) {
  const Result result = victim(3, {"calls-barrier", "1"}, with(kUnchecked, kImpatient));
  EXPECT_EQ(result.code, 1);
  for (int rank = 0; rank < 3; ++rank) expect_names_rank_and_operation(rank, said_by(rank, result.err));
}

TEST_F(Faults, RanksThatTrainDifferentModels) {
  expect_diverged({"wider", "1"}, {" has parameter 'layers.0.weight' of shape [48, 48]",
                                   " has parameter 'layers.0.weight' of shape [64, 48]"});
  for (const char* plan : {"zero3", "ddp"})
    expect_diverged({"deeper", "2", plan}, {" has no more parameters or buffers", " has no more parameters or buffers",
                                            " has parameter 'layers.3.weight' of shape [48, 48]"});
}

TEST_F(Faults, RanksThatTrainUnderDifferentPlans) {
  expect_diverged({"other-plan", "1", "zero3"},
                  {" has plan zero3, fp32", " has plan ddp, fp32", " has plan zero3, fp32"});
}

class Meeting : public Faults {
 protected:
  static Result alone(int rank, const Variables& changes) {
    return run({kVictim, "none", "0"}, with(with(rank_variables(rank, 2, "1"), kImpatient), changes));
  }
  static void expect_error(const Result& result, const Words& parts) {
    EXPECT_EQ(result.code, 1) << result.err;
    EXPECT_TRUE(contains(result.err, "CommError: rank ")) << result.err;
    for (const std::string& part : parts) EXPECT_TRUE(contains(result.err, part)) << part << " not in " << result.err;
  }
};

TEST_F(Meeting, NamesTheRankThatDoesNotCome) {
  const Port port;
  expect_error(alone(0, {{"MASTER_PORT", port.number()}}),
               {"rank 0: not all 2 ranks came to 127.0.0.1:" + port.number() + " within 2000 ms; rank 1 did not",
                "ZERO_TIMEOUT"});
}

TEST_F(Meeting, NamesThePlaceWhereNobodyAnswers) {
  const Port port;
  expect_error(alone(1, {{"MASTER_PORT", port.number()}}),
               {"rank 1: nobody answers at 127.0.0.1:" + port.number(), "MASTER_PORT"});
}

TEST_F(Meeting, NamesAPortThatIsTaken) {
  const Port port(Port::Use::listening);
  expect_error(alone(0, {{"MASTER_PORT", port.number()}}),
               {"rank 0: cannot listen at 127.0.0.1:" + port.number(), "set MASTER_PORT to a free one"});
}

TEST_F(Meeting, GivesUpOnAPortThatBelongsToAnotherProgram) {
  const Port port(Port::Use::listening);
  expect_error(alone(1, {{"MASTER_PORT", port.number()}}), {"rank 1: ", "127.0.0.1:" + port.number(), "MASTER_PORT"});
}

TEST_F(Meeting, NamesAHostThatIsUnknown) {
  expect_error(alone(1, {{"MASTER_ADDR", "no-such-host.invalid"}}),
               {"rank 1: ", "no-such-host.invalid", "MASTER_ADDR"});
}

TEST_F(Meeting, NamesAnInterfaceThatIsUnknown) {
  const Result result = alone(0, {{"GLOO_SOCKET_IFNAME", "none7"}});
  EXPECT_EQ(result.code, 1);
  EXPECT_EQ(result.err.find("ConfigError: rank 0: this host has no network interface \"none7\""), 0u) << result.err;
  EXPECT_TRUE(contains(result.err, "GLOO_SOCKET_IFNAME")) << result.err;
}

TEST_F(Meeting, FailsForAllWhenTheRanksDisagreeOnTheWorldsSize) {
  const Port port;
  const auto results = run_together({kVictim, "none", "0"}, {with(rank_variables(0, 2, port.number()), kImpatient),
                                                             with(rank_variables(1, 3, port.number()), kImpatient)});
  expect_error(results[0], {"rank 0: "});
  expect_error(results[1], {"rank 1: ", "3 ranks"});
}

}  // namespace
