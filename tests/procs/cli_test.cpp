// The program zero, as a user meets it.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>

#include "procs/zero_program.h"

namespace cli_test {

using nlohmann::json;
using procs::contains;
using procs::Folder;
using procs::joined;
using procs::kZero;
using procs::Program;
using procs::Result;
using procs::run;
using procs::Variables;
using procs::zero;
using testing::Values;

struct Complaint {
  std::vector<std::string> arguments;
  int code;
  std::string says;
};

class Complains : public testing::TestWithParam<Complaint> {};

TEST_P(Complains, InOneLineBeforeItStarts) {
  const Result result = run(zero(GetParam().arguments));
  EXPECT_EQ(result.code, GetParam().code) << result.err;
  EXPECT_TRUE(result.err.starts_with("zero: ")) << result.err;
  EXPECT_TRUE(contains(result.err, GetParam().says)) << result.err;
  EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
  EXPECT_EQ(result.out, "");
}

INSTANTIATE_TEST_SUITE_P(
    Usage, Complains,
    Values(Complaint{{}, 2, "train, compare, eval, plan, bench, checkpoint or launch"}, Complaint{{"tran"}, 2, "tran"},
           Complaint{{"train", "--frob"}, 2, "--frob"}, Complaint{{"train", "--plan", "zero9"}, 2, "zero9"},
           Complaint{{"compare", "--plans", "ddp,zero9"}, 2, "zero9"},
           Complaint{{"compare", "--optimizers", "adamw,adamz"}, 2, "adamw-8bit"},
           Complaint{{"compare", "--optimizers", "all", "--optimizer", "sgd"}, 2, "--optimizer"},
           Complaint{{"compare", "--precisions", "fp32,bf16"}, 2, "--precisions requires --optimizers"},
           Complaint{{"compare", "--optimizers", "sgd", "--precisions", "fp32,fp4"}, 2, "fp4"},
           Complaint{{"compare", "--optimizers", "sgd", "--precisions", "all", "--precision", "bf16"}, 2, "excludes"},
           Complaint{{"train", "--steps", "x"}, 2, "--steps"}, Complaint{{"train", "--steps", "0"}, 2, "--steps"},
           Complaint{{"train", "--ranks", "0"}, 2, "--ranks"}, Complaint{{"train", "--lr", "nan"}, 2, "--lr"},
           Complaint{{"train", "--precision", "fp4"}, 2, "fp4"},
           Complaint{{"train", "--resident-budget", "many"}, 2, "--resident-budget"},
           Complaint{{"train", "--tokens", "8"}, 2, "--tokens"}, Complaint{{"train", "--tokens", "16"}, 2, "--data"},
           Complaint{{"train", "--model", "huge"}, 2, "huge"}, Complaint{{"train", "--seq", "1000000"}, 2, "--seq"},
           Complaint{
               {"train", "--model", "micro", "--steps", "9223372036854775807", "--accumulate", "2"}, 2, "--steps"},
           Complaint{{"train", "--model", "micro", "--ranks", "2", "--steps", "2305843009213693952"}, 2, "2 ranks"},
           Complaint{{"launch", "-n", "0", "true"}, 2, "--ranks"}, Complaint{{"launch", "true"}, 2, "--ranks"},
           Complaint{{"launch", "-n", "2"}, 2, "no program"},
           Complaint{{"launch", "-n", "2", "--frob", "true"}, 2, "--frob"}));

INSTANTIATE_TEST_SUITE_P(
    Files, Complains,
    Values(Complaint{{"train", "--ranks", "2", "--model", "none/config.json"}, 2, "none/config.json"},
           Complaint{{"compare", "--model", "/dev/null"}, 2, "/dev/null"},
           Complaint{{"train", "--ranks", "2", "--data", "none/text"}, 2, "none/text"},
           Complaint{{"compare", "--data", "/dev/null"}, 2, "/dev/null"},
           Complaint{{"compare", "--model", "micro", "--json", "none/out.json"}, 2, "none/out.json"},
           Complaint{{"train", "--model", "micro", "--json", "/"}, 2, "cannot write"},
           Complaint{{"launch", "-n", "2", "none/program"}, 1, "none/program"}));

TEST(Help, GroupsOptionsByConcept) {
  for (const char* command : {"train", "compare"}) {
    const Result result = run(zero({command, "--help"}));
    EXPECT_EQ(result.code, 0);
    for (const char* group : {"Plan:", "Model and data:", "Training:", "Output:"})
      EXPECT_TRUE(contains(result.out, group)) << group;
  }
}

TEST(Help, IsPointedToOfTheCommandThatWasMeant) {
  for (const procs::Words& words : {procs::Words{"plan"}, {"train"}, {"bench", "profile"}}) {
    const Result result = run(zero(joined(words, {"--no-such-option"})));
    EXPECT_EQ(result.code, 2);
    std::string command = "see zero";
    for (const std::string& each : words) command += " " + each;
    EXPECT_TRUE(contains(result.err, command + " --help\n")) << result.err;
  }
}

struct BadWorld {
  Variables variables;
  std::string says;
};
class World : public testing::TestWithParam<BadWorld> {};

TEST_P(World, IsCheckedBeforeTraining) {
  const Result result = run(zero({"train", "--model", "micro"}), GetParam().variables);
  EXPECT_EQ(result.code, 2) << result.err;
  EXPECT_TRUE(contains(result.err, GetParam().says)) << result.err;
}

const Variables kRank{{"RANK", "0"},        {"WORLD_SIZE", "2"},         {"LOCAL_RANK", "0"}, {"LOCAL_WORLD_SIZE", "2"},
                      {"MASTER_PORT", "1"}, {"MASTER_ADDR", "127.0.0.1"}};

Variables changed(const std::string& name, const std::string& value) {
  Variables result = kRank;
  result[name] = value;
  return result;
}

INSTANTIATE_TEST_SUITE_P(
    Bad, World,
    Values(BadWorld{changed("WORLD_SIZE", "two"), "WORLD_SIZE"}, BadWorld{changed("WORLD_SIZE", "0"), "WORLD_SIZE"},
           BadWorld{changed("RANK", "2"), "RANK"}, BadWorld{changed("LOCAL_RANK", "7"), "LOCAL_RANK"},
           BadWorld{changed("MASTER_PORT", "99999"), "MASTER_PORT"}, BadWorld{{{"WORLD_SIZE", "2"}}, "RANK"}));

TEST(Worlds, MustAgreeWithRanks) {
  const Result result = run(zero({"launch", "-n", "2", kZero, "train", "--ranks", "3"}));
  EXPECT_EQ(result.code, 2);
  EXPECT_TRUE(contains(result.err, "--ranks 3")) << result.err;
}

TEST(Launch, GivesTorchrunsVariables) {
  const Result result = run(zero({"launch", "-n", "2", "sh", "-c",
                                  "echo $RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE $GROUP_RANK $MASTER_ADDR "
                                  "$TORCHELASTIC_USE_AGENT_STORE $OMP_NUM_THREADS; test $MASTER_PORT -gt 0"}),
                            {{"OMP_NUM_THREADS", "3"}});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_TRUE(contains(result.out, "[0] 0 2 0 2 0 127.0.0.1 True 3\n")) << result.out;
  EXPECT_TRUE(contains(result.out, "[1] 1 2 1 2 0 127.0.0.1 True 3\n")) << result.out;
}

TEST(Launch, PrefixesWholeLinesOfBothOutputs) {
  const Result result = run(zero({"launch", "-n", "1", "sh", "-c", "printf 'a\\n\\nb'; printf c >&2"}));
  EXPECT_EQ(result.out, "[0] a\n[0] \n[0] b\n");
  EXPECT_EQ(result.err, "[0] c\n");
  const Result plain = run(zero({"launch", "-n", "1", "--no-prefix", "printf", "b"}));
  EXPECT_EQ(plain.out, "b");
}

TEST(Launch, LeavesTheProgramsOptionsAlone) {
  const Result result = run(zero({"launch", "-n", "1", "echo", "-n", "--help", "--", "x"}));
  EXPECT_EQ(result.out, "[0] --help -- x\n");
}

TEST(Launch, FirstFailureEndsTheOthersAndIsTheExitCode) {
  const Result result = run(zero({"launch", "-n", "3", "sh", "-c", "[ $RANK = 1 ] && exit 7; sleep 3600"}));
  EXPECT_EQ(result.code, 7);
  EXPECT_EQ(result.err, "zero: rank 1 failed with exit code 7\n");
}

TEST(Launch, KillsThoseThatDoNotEnd) {
  const Result result = run(
      zero({"launch", "-n", "2", "--grace", "0.1", "sh", "-c", "[ $RANK = 1 ] && exit 7; trap '' TERM; sleep 3600"}));
  EXPECT_EQ(result.code, 7);
}

TEST(Launch, NamesTheSignalThatKilledARank) {
  const Result result = run(zero({"launch", "-n", "2", "sh", "-c", "kill -9 $$"}));
  EXPECT_EQ(result.code, 137);
  EXPECT_TRUE(contains(result.err, "was killed by signal 9 (Killed)")) << result.err;
}

TEST(Launch, PassesSignalsOn) {
  Program program(
      zero({"launch", "-n", "2", "sh", "-c", "trap 'echo bye; exit 5' TERM; echo ready; sleep 3600 & wait"}));
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(contains(program.line(), "ready"));
  ::kill(program.pid(), SIGTERM);
  const Result result = program.finish();
  EXPECT_EQ(result.code, 5);
  EXPECT_TRUE(contains(result.out, "[0] bye") && contains(result.out, "[1] bye")) << result.out;
}

TEST(Launch, EndsByTheSignalOfItsRanks) {
  Program program(zero({"launch", "-n", "2", "sh", "-c", "echo ready; exec sleep 3600"}));
  for (int i = 0; i < 2; ++i) program.line();
  ::kill(program.pid(), SIGINT);
  EXPECT_EQ(program.finish().code, 128 + SIGINT);
}

TEST(Launch, LeavesNoProcessBehind) {
  const procs::Orphanage orphanage;
  EXPECT_EQ(run(zero({"launch", "-n", "2", "sh", "-c", "sleep 3600 & exit 0"})).code, 0);
  EXPECT_EQ(run(zero({"launch", "-n", "2", "sh", "-c", "sleep 3600 & [ $RANK = 1 ] && exit 3; wait"})).code, 3);
  EXPECT_EQ(orphanage.survivors(), 0);
}

TEST(Launch, RanksDieWithTheLauncher) {
  const procs::Orphanage orphanage;
  Program program(zero({"launch", "-n", "2", "sleep", "3600"}));
  while (!procs::rank_of(program.pid(), 1)) continue;
  ::kill(program.pid(), SIGKILL);
  EXPECT_EQ(program.finish().code, -SIGKILL);
  EXPECT_EQ(orphanage.survivors(), 0);
}

TEST(Train, GivesTheSameLossesWhoeverStartsTheRanks) {
  const Folder folder;
  const auto options = folder.small({"--plan", "zero3", "--steps", "3", "--json"});
  const Result own = run(zero(joined({"train", "--ranks", "2"}, joined(options, {folder.path("own")}))));
  EXPECT_EQ(own.code, 0) << own.err;
  const Result launched =
      run(zero(joined({"launch", "-n", "2", kZero, "train"}, joined(options, {folder.path("launched")}))));
  EXPECT_EQ(launched.code, 0) << launched.err;
  const json run = folder.document("own").at("runs").at(0);
  EXPECT_EQ(run.at("losses").size(), 3u);
  EXPECT_EQ(run.at("optimizer"), "adamw");
  EXPECT_EQ(run.at("precision"), "fp32");
  EXPECT_EQ(run.at("losses"), folder.document("launched").at("runs").at(0).at("losses"));
  EXPECT_TRUE(contains(own.out, "sharded")) << own.out;
  EXPECT_TRUE(contains(own.out, "step 3  loss ")) << own.out;
}

TEST(Train, ReproducibleGivesOneCurveForEverySplitOfTheBatch) {
  const Folder folder;
  const auto curve = [&](const char* ranks, const char* accumulate) {
    const Result result = run(zero(joined({"train", "--reproducible", "--ranks", ranks, "--accumulate", accumulate},
                                          folder.small({"--steps", "3", "--json", folder.path(ranks)}))));
    EXPECT_EQ(result.code, 0) << result.err;
    return folder.document(ranks).at("runs").at(0).at("losses");
  };
  const json alone = curve("1", "4");
  EXPECT_EQ(alone, curve("2", "2"));
  EXPECT_EQ(alone, curve("4", "1"));
}

TEST(Train, EvaluatesAlikeAtEveryWorldSize) {
  const Folder folder;
  const auto evaluations = [&](const char* ranks) {
    const Result result = run(zero(joined({"train", "--ranks", ranks, "--lr", "0", "--eval-every", "2"},
                                          folder.small({"--steps", "4", "--json", folder.path(ranks)}))));
    EXPECT_EQ(result.code, 0) << result.err;
    return folder.document(ranks).at("runs").at(0).at("evaluations");
  };
  const json alone = evaluations("1");
  EXPECT_EQ(alone.size(), 2u);
  EXPECT_EQ(alone, evaluations("3"));
}

TEST(Train, ARankThatIsKilledEndsTheRun) {
  const procs::Orphanage orphanage;
  const Folder folder;
  Program program(
      zero(joined({"train", "--ranks", "3", "--steps", "1000000"}, folder.small({"--json", folder.path("out")}))));
  while (!program.line().starts_with("step 1 ")) continue;
  const pid_t others[] = {procs::rank_of(program.pid(), 0), procs::rank_of(program.pid(), 2)};
  ASSERT_GT(procs::rank_of(program.pid(), 1), 0);
  ::kill(procs::rank_of(program.pid(), 1), SIGKILL);
  const Result result = program.finish();
  EXPECT_EQ(result.code, 1);
  EXPECT_TRUE(contains(result.err, "zero: rank 1 was killed by signal 9")) << result.err;
  for (const pid_t pid : others) EXPECT_FALSE(procs::alive(pid));
  EXPECT_EQ(orphanage.survivors(), 0);
  EXPECT_FALSE(folder.has("out"));
}

TEST(Train, StopsWithAllRanksWhenTold) {
  const procs::Orphanage orphanage;
  const Folder folder;
  Program program(zero(joined({"train", "--ranks", "2", "--steps", "1000000"}, folder.small({}))));
  while (!program.line().starts_with("step 1 ")) continue;
  ::kill(program.pid(), SIGINT);
  const Result result = program.finish();
  EXPECT_EQ(result.code, 128 + SIGINT);
  EXPECT_EQ(result.err, "zero: stopped by signal 2 (Interrupt)\n");
  EXPECT_EQ(orphanage.survivors(), 0);
}

}  // namespace cli_test
