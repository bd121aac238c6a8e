// What the other ranks, the launcher and the user see when a rank dies, strays or does not come, by shared memory, by
// streams and by Gloo. The ranks are those of victim.cpp; they stay until they have an error, so a rank that is left
// waiting is killed and says nothing.
#include <gtest/gtest.h>

#include <regex>

#include "procs/zero_program.h"

namespace faults_test {

using procs::contains;
using procs::joined;
using procs::Port;
using procs::rank_variables;
using procs::Result;
using procs::run;
using procs::run_together;
using procs::said_by;
using procs::Variables;
using procs::with;
using procs::Words;
using procs::zero;

const std::string kVictim = ZERO_VICTIM;
const Variables kUnchecked{{"ZERO_CHECK", "0"}};
const Variables kChecked{{"ZERO_CHECK", "1"}};
constexpr int kShortest = 2, kLongest = 1000;  // seconds that a rank waits for what does not come
const Variables kImpatient{{"ZERO_TIMEOUT", std::to_string(kShortest)}};
const std::string kGrace = "3600";

// The error of a rank whose collective failed: who it is, in which operation, and `why`.
void expect_told(int rank, const std::string& error, const std::string& why) {
  static const std::string operations = "(all_gather|reduce_scatter|all_reduce|all_to_all|broadcast|barrier) #[0-9]+";
  const std::regex expected("^CommError: rank " + std::to_string(rank) + ": " + operations + "( \\(.*\\))?:? " + why);
  EXPECT_TRUE(std::regex_search(error, expected)) << "rank " << rank << " said: " << error << "not: " << why;
}

// What connects the ranks, and what those that stay say of the one that does not.
struct Transport {
  const char* name;  // ZERO_TRANSPORT
  const char* died;
  const char* left;
  const char* late;
};

const Transport kShared{"auto", "RANK died", "RANK left the group", "rank [0-9] did not arrive within LIMIT"};
const Transport kNetwork{"tcp", "failed over tcp: .*RANK at 127.0.0.1 died",
                         "failed over tcp: .*RANK at 127.0.0.1 left",
                         "failed over tcp: rank [0-9] at 127.0.0.1 did not answer within LIMIT"};
const Transport kGloo{"gloo", "failed over gloo: .*a peer died", "failed over gloo: .*a peer died",
                      "failed over gloo: .*LIMIT"};

void PrintTo(const Transport& transport, std::ostream* out) {
  *out << transport.name;
}

class Faults : public testing::TestWithParam<Transport> {
 protected:
  ~Faults() override { EXPECT_EQ(orphanage_.survivors(), 0); }

  static bool shared() { return GetParam().name == kShared.name; }
  static bool streams() { return GetParam().name == kNetwork.name; }

  static Result launch(int ranks, const Words& fault, const Variables& variables, const std::string& grace = kGrace) {
    const Words command{"launch", "-n", std::to_string(ranks), "--grace", grace, kVictim};
    return run(zero(joined(command, fault)), with(variables, {{"ZERO_TRANSPORT", GetParam().name}}));
  }

  // With a time limit in which all ranks meet, longer where the machine is slow; and what is said where it has passed.
  static std::pair<Result, std::string> launch_impatient(int ranks, const Words& fault, const Variables& variables,
                                                         const std::string& grace = kGrace) {
    for (int seconds = kShortest;; seconds *= 2) {
      const Result result = launch(ranks, fault, with(variables, {{"ZERO_TIMEOUT", std::to_string(seconds)}}), grace);
      int met = 0;
      for (int rank = 0; rank < ranks; ++rank) met += contains(said_by(rank, result.out), "joined");
      if (met == ranks || seconds > kLongest)
        return {result, std::regex_replace(GetParam().late, std::regex("LIMIT"), std::to_string(seconds) + "000 ms")};
    }
  }

  static void expect_survivors_told(const Result& result, int victim, const std::string& why) {
    const std::string rank = "rank " + std::to_string(victim);
    for (int survivor = 0; survivor < 3; ++survivor)
      if (survivor != victim)
        expect_told(survivor, said_by(survivor, result.err), std::regex_replace(why, std::regex("RANK"), rank));
  }

  static void expect_killed(int rank, const Words& fault, const Variables& variables = kUnchecked) {
    const Result result =
        launch(3, joined({fault.front(), std::to_string(rank)}, {fault.begin() + 1, fault.end()}), variables);
    EXPECT_EQ(result.code, 137);
    const std::string verdict = "zero: rank " + std::to_string(rank) + " was killed by signal 9 (Killed)\n";
    EXPECT_TRUE(contains(result.err, verdict)) << result.err;
    expect_survivors_told(result, rank, why_checked(variables) + GetParam().died);
  }

  static void expect_diverged(const Words& fault, const Words& each, const Variables& variables = kUnchecked) {
    const Result result = launch(3, fault, variables);
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
  // Where the calls are compared first, that may be what fails.
  static std::string why_checked(const Variables& variables) {
    return variables == kChecked ? "(comparing the calls: .*)?" : "";
  }

  procs::Orphanage orphanage_;
};

INSTANTIATE_TEST_SUITE_P(Over, Faults, testing::Values(kShared, kNetwork, kGloo),
                         [](const auto& each) { return std::string(each.param.name); });

TEST_P(Faults, KilledInForward) {
  expect_killed(0, {"dies-in-forward", "zero3"});
  expect_killed(2, {"dies-in-forward", "ddp"}, kChecked);
}

TEST_P(Faults, KilledWhileItWaitsInACollective) {
  expect_killed(1, {"dies-in-collective", "zero3"});
  expect_killed(2, {"dies-in-collective", "zero2"}, kChecked);
}

TEST_P(Faults, KilledHalfWayThroughACollective) {
  expect_killed(1, {shared() ? "dies-between-pieces" : "dies-in-all-gather"});
}

TEST_P(Faults, KilledBetweenVoteAndUpdate) {
  expect_killed(2, {"dies-in-step", "zero3"});
  expect_killed(1, {"dies-in-step", "zero1"});
}

TEST_P(Faults, OneRankThrows) {
  const Result result = launch(3, {"throws-in-forward", "1"}, kUnchecked);
  EXPECT_TRUE(result.code == 3 || result.code == 1) << result.code;
  EXPECT_EQ(said_by(1, result.err), "exception: no such token\n");
  expect_survivors_told(result, 1, GetParam().left);
}

TEST_P(Faults, OneRankEndsEarly) {
  const Result result = launch(3, {"leaves", "1"}, kUnchecked);
  EXPECT_EQ(result.code, 1);
  EXPECT_EQ(said_by(1, result.err), "");
  EXPECT_TRUE(std::regex_search(result.err, std::regex("zero: rank [02] failed with exit code 1\n"))) << result.err;
  expect_survivors_told(result, 1, GetParam().left);
}

TEST_P(Faults, OneRankStopsAnswering) {
  const auto [result, late] = launch_impatient(2, {"stops", "1"}, {}, "0.1");
  EXPECT_EQ(result.code, 1);
  expect_told(0, said_by(0, result.err), late);
  EXPECT_TRUE(contains(result.err, "zero: rank 0 failed with exit code 1\n")) << result.err;
}

TEST_P(Faults, RanksThatCallDifferentOperations) {
  const std::string step = " wants, as operation n, to take a step";
  expect_diverged({"writes", "1"}, {step, " wants, as operation n, to read or write unit 'layers.0'", step});
  expect_diverged({"repeats-backward", "0"}, {" wants, as operation n, to reduce gradients of unit 'layers.2'"});
}

TEST_P(Faults, RanksThatCallDifferentCollectives) {
  expect_diverged({"calls-barrier", "1"}, {": all_reduce #2 (1 fp32)", ": barrier #2", ": all_reduce #2 (1 fp32)"},
                  kChecked);
}

// Shared memory compares the calls in any case, and streams tell that they are not the same.
TEST_P(Faults, RanksThatCallDifferentCollectivesUncheckedEndInTimeAndDoNotAbort) {
  const Words fault{"calls-barrier", "1"};
  if (shared()) return expect_diverged(fault, {": all_reduce #2 (1 fp32)", ": barrier #2", ": all_reduce #2 (1 fp32)"});
  const auto [result, late] =
      streams() ? std::pair(launch(3, fault, kUnchecked), std::string()) : launch_impatient(3, fault, kUnchecked);
  const std::string why = streams() ? "failed over tcp: .* (called something else|failed there)" : late;
  EXPECT_EQ(result.code, 1);
  for (int rank = 0; rank < 3; ++rank) expect_told(rank, said_by(rank, result.err), why);
}

TEST_P(Faults, RanksThatTrainDifferentModels) {
  expect_diverged({"wider", "1"}, {" has parameter 'layers.0.weight' of shape [48, 48]",
                                   " has parameter 'layers.0.weight' of shape [64, 48]"});
  for (const char* plan : {"zero3", "ddp"})
    expect_diverged({"deeper", "2", plan}, {" has no more parameters or buffers", " has no more parameters or buffers",
                                            " has parameter 'layers.3.weight' of shape [48, 48]"});
}

TEST_P(Faults, RanksThatTrainUnderDifferentPlans) {
  expect_diverged({"other-plan", "1", "zero3"},
                  {" has plan zero3, fp32", " has plan ddp, fp32", " has plan zero3, fp32"});
}

// Four ranks as two hosts.
TEST(TwoLevels, WhoeverIsToldOfADeadRankIsToldTheRightOne) {
  const procs::Orphanage orphanage;
  const Result result = run(zero({"launch", "-n", "4", "--grace", kGrace, kVictim, "dies-in-forward", "2"}),
                            with(kUnchecked, {{"ZERO_RANKS_PER_HOST", "2"}}));
  EXPECT_EQ(result.code, 137);
  for (int rank : {0, 1, 3}) expect_told(rank, said_by(rank, result.err), "");
  EXPECT_TRUE(contains(said_by(3, result.err), "rank 2 died")) << result.err;
  EXPECT_FALSE(std::regex_search(result.err, std::regex("rank [013]( at [^ ]+)? died"))) << result.err;
  EXPECT_EQ(orphanage.survivors(), 0);
}

class Meeting : public testing::Test {
 protected:
  ~Meeting() override { EXPECT_EQ(orphanage_.survivors(), 0); }

  static Result alone(int rank, const Variables& changes) {
    return run({kVictim, "none", "0"}, with(with(rank_variables(rank, 2, "1"), kImpatient), changes));
  }
  static void expect_error(const Result& result, const Words& parts) {
    EXPECT_EQ(result.code, 1) << result.err;
    EXPECT_TRUE(contains(result.err, "CommError: rank ")) << result.err;
    for (const std::string& part : parts) EXPECT_TRUE(contains(result.err, part)) << part << " not in " << result.err;
  }

 private:
  procs::Orphanage orphanage_;
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
  std::vector<Result> results;
  // Rank 0, which serves the store, must still be there when the other comes.
  for (int seconds = kShortest; seconds < kLongest; seconds *= 2) {
    const Port port;
    const Variables patience{{"ZERO_TIMEOUT", std::to_string(seconds)}};
    results = run_together({kVictim, "none", "0"}, {with(rank_variables(0, 2, port.number()), patience),
                                                    with(rank_variables(1, 3, port.number()), patience)});
    if (contains(results[1].err, "3 ranks")) break;
  }
  expect_error(results[0], {"rank 0: "});
  expect_error(results[1], {"rank 1: ", "3 ranks"});
}

}  // namespace faults_test
