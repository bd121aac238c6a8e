// `zero train` that is killed, asked to stop, or started again: nothing that was computed is lost.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <random>

#include "procs/zero_program.h"

namespace resume_test {

using procs::contains;
using procs::Folder;
using procs::joined;
using procs::Program;
using procs::Result;
using procs::run;
using procs::Words;
using procs::zero;

using Curve = std::vector<double>;

Curve losses(const Folder& folder, const std::string& name) {
  return folder.document(name).at("runs").at(0).at("losses").get<Curve>();
}
nlohmann::json evaluations(const Folder& folder, const std::string& name) {
  return folder.document(name).at("runs").at(0).at("evaluations");
}

// Reads what it prints up to a line that contains `part`. False: it has ended.
bool reads(Program& program, const std::string& part) {
  constexpr int most = 5;  // empty lines that may follow each other
  for (int empty = 0; empty < most;) {
    const std::string line = program.line();
    if (contains(line, part)) return true;
    empty = line.empty() ? empty + 1 : 0;
  }
  return false;
}

class Resume : public testing::Test {
 protected:
  Words train(const Words& more, const std::string& json) const {
    return zero(joined(joined({"train"}, folder_.small({"--steps", "12", "--ranks", "2", "--eval-every", "4"})),
                       joined(more, {"--json", folder_.path(json)})));
  }
  // What ends when it is told to.
  static Words endless(Words command) {
    *std::ranges::find(command, "12") = "1000000";
    return command;
  }
  std::string place() const { return folder_.path("run"); }
  bool has_checkpoints() const {
    if (!std::filesystem::exists(place())) return false;
    return std::ranges::any_of(std::filesystem::directory_iterator(place()), [](const auto& entry) {
      const std::string name = entry.path().filename();
      return name.starts_with("step-") && !contains(name, ".");
    });
  }

  Folder folder_;
};

TEST_F(Resume, GoesOnWithTheBitsOfARunThatWasNotEnded) {
  ASSERT_EQ(run(train({"--plan", "zero2"}, "whole.json")).code, 0);
  const Result first = run(train({"--plan", "zero2", "--save-to", place(), "--save-every", "5"}, "first.json"));
  ASSERT_EQ(first.code, 0) << first.err;
  EXPECT_TRUE(contains(first.out, "saved " + place() + "/step-000005\n")) << first.out;
  EXPECT_TRUE(contains(first.out, "saved " + place() + "/step-000012\n")) << first.out;
  EXPECT_EQ(losses(folder_, "first.json"), losses(folder_, "whole.json"));
  std::filesystem::remove_all(place() + "/step-000010");
  std::filesystem::remove_all(place() + "/step-000012");
  const Result second = run(train({"--plan", "zero3", "--save-to", place(), "--resume", "auto"}, "second.json"));
  ASSERT_EQ(second.code, 0) << second.err;
  EXPECT_TRUE(contains(second.out, "goes on after step 5 from " + place() + "/step-000005\n")) << second.out;
  EXPECT_EQ(losses(folder_, "second.json"), losses(folder_, "whole.json"));
  EXPECT_EQ(evaluations(folder_, "second.json"), evaluations(folder_, "whole.json"));
}

TEST_F(Resume, NeedsTheOptimizerThatSavedOrLetsAnotherBegin) {
  const Words saving{"--plan", "zero3", "--save-to", place()};
  ASSERT_EQ(run(train(joined(saving, {"--optimizer", "lion", "--save-every", "5"}), "lion.json")).code, 0);
  for (const char* later : {"/step-000010", "/step-000012"}) std::filesystem::remove_all(place() + later);
  const Words other = joined(saving, {"--optimizer", "adagrad", "--resume", "auto"});
  const Result refused = run(train(other, "refused.json"));
  EXPECT_EQ(refused.code, 2);
  for (const char* word : {"is of lion (exp_avg), and not of adagrad (sum)", "--allow-new-optimizer"})
    EXPECT_TRUE(contains(refused.err, word)) << refused.err;
  EXPECT_FALSE(std::filesystem::exists(place() + "/step-000012"));
  const Result begun = run(train(joined(other, {"--allow-new-optimizer"}), "begun.json"));
  ASSERT_EQ(begun.code, 0) << begun.err;
  EXPECT_TRUE(contains(begun.out, "goes on after step 5 from " + place() + "/step-000005\n")) << begun.out;
  const Curve before = losses(folder_, "lion.json"), after = losses(folder_, "begun.json");
  ASSERT_EQ(after.size(), 12u);
  EXPECT_TRUE(std::equal(before.begin(), before.begin() + 5, after.begin()));
  for (const double loss : after) EXPECT_LT(loss, 10);
}

TEST_F(Resume, SaysThatNothingIsLeftToDo) {
  const Words words{"--plan", "zero3", "--save-to", place(), "--resume", "auto"};
  ASSERT_EQ(run(train(words, "whole.json")).code, 0);
  const Result none = run(train(words, "none.json"));
  EXPECT_EQ(none.code, 0) << none.err;
  EXPECT_TRUE(none.out.ends_with("\n\nnothing is left to do: 12 of 12 steps are done\n")) << none.out;
  EXPECT_EQ(none.err, "");
  for (const char* misleading : {"differs", "measured", "last loss"})
    EXPECT_FALSE(contains(none.out, misleading)) << none.out;
  EXPECT_EQ(losses(folder_, "none.json"), losses(folder_, "whole.json"));
  EXPECT_EQ(evaluations(folder_, "none.json"), evaluations(folder_, "whole.json"));
  const auto report = folder_.document("none.json").at("runs").at(0);
  EXPECT_EQ(report.at("steps_made"), 0);
  EXPECT_EQ(folder_.document("whole.json").at("runs").at(0).at("steps_made"), 12);
  for (const char* state : {"parameter", "optimizer"})
    EXPECT_EQ(report.at("state_bytes").at(state).at("measured"), report.at("state_bytes").at(state).at("predicted"));
  for (const nlohmann::json& unknown :
       {report.at("state_bytes").at("gradient").at("measured"), report.at("activation_bytes").at("measured"),
        report.at("buffer_bytes").at("measured"), report.at("peak").at("measured"), report.at("step_seconds"),
        report.at("tokens_per_second"), report.at("update_seconds"), report.at("seconds").at("compute")})
    EXPECT_TRUE(unknown.is_null()) << unknown;
  EXPECT_EQ(report.at("wire_bytes_per_step").at("measured"), 0);
}

// A save behind training takes a copy of what is saved; one at the end does not.
TEST_F(Resume, PredictsThePeakOfTheWayItSaves) {
  const auto peak = [&](const Words& more) {
    const Result result = run(train(joined({"--plan", "zero3"}, more), "peak.json"));
    EXPECT_EQ(result.code, 0) << result.err;
    return folder_.document("peak.json").at("runs").at(0).at("peak");
  };
  const auto agrees = [](const nlohmann::json& bytes) {
    const double predicted = bytes.at("predicted"), measured = bytes.at("measured");
    EXPECT_GE(predicted, measured);
    EXPECT_LE(predicted, 1.03 * measured);
  };
  const auto without = peak({}), at_end = peak({"--save-to", place()});
  const auto last = peak({"--save-to", folder_.path("b"), "--save-every", "12"});
  const auto behind = peak({"--save-to", folder_.path("c"), "--save-every", "5"});
  std::filesystem::remove_all(folder_.path("c") + "/step-000012");
  const auto rest = peak({"--save-to", folder_.path("c"), "--save-every", "5", "--resume", "auto"});
  for (const auto& each : {without, at_end, last, behind, rest}) agrees(each);
  for (const auto& each : {at_end, last, rest}) EXPECT_EQ(each.at("predicted"), without.at("predicted"));
  EXPECT_GT(behind.at("predicted"), without.at("predicted"));
}

TEST_F(Resume, StartsWhereThereIsNothingYet) {
  const Result result = run(train({"--save-to", place(), "--resume", "auto"}, "a.json"));
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(losses(folder_, "a.json").size(), 12u);
}

TEST_F(Resume, MixesNoRuns) {
  ASSERT_EQ(run(train({"--save-to", place(), "--save-every", "6"}, "a.json")).code, 0);
  const auto refused = [&](const Words& more, const std::string& why) {
    const Result result = run(train(joined({"--save-to", place()}, more), "b.json"));
    EXPECT_EQ(result.code, 2);
    EXPECT_TRUE(contains(result.err, why)) << result.err;
    EXPECT_FALSE(folder_.has("b.json"));
  };
  refused({}, "has checkpoints up to step 12: go on from there with --resume auto, or give another folder");
  refused({"--resume", "none"}, "go on from there with --resume auto");
  refused({"--resume", "6"}, "move those after step 6 elsewhere first");
  refused({"--resume", "7"}, "has no checkpoint of step 7, but up to step 12");
  refused({"--resume", "seven"}, "'seven' is neither auto, none nor the step of a checkpoint");
  refused({"--save-every", "0"}, "'0' is neither a number of steps, such as 100, nor a time");
  refused({"--save-every", "10 parsecs"}, "neither a number of steps");
  refused({"--resume", "auto", "--keep-every", "5"}, "--keep-every: without --keep");
  const Result folderless = run(train({"--resume", "auto"}, "b.json"));
  EXPECT_EQ(folderless.code, 2);
  EXPECT_TRUE(contains(folderless.err, "--save-to")) << folderless.err;
  std::filesystem::remove_all(place() + "/step-000012");
  EXPECT_EQ(run(train({"--save-to", place(), "--resume", "6", "--keep", "1"}, "c.json")).code, 0);
  EXPECT_EQ(losses(folder_, "c.json"), losses(folder_, "a.json"));
  EXPECT_FALSE(std::filesystem::exists(place() + "/step-000006")) << "--keep 1";
}

// Whatever the launcher and its ranks were doing when they were killed.
TEST_F(Resume, GoesOnAfterTheLauncherWasKilled) {
  ASSERT_EQ(run(train({"--plan", "zero3"}, "whole.json")).code, 0);
  const Words command =
      train({"--plan", "zero3", "--save-to", place(), "--save-every", "2", "--resume", "auto"}, "a.json");
  const procs::Orphanage orphanage;
  int kills = 0;
  for (int run = 0; run < 3; ++run) {
    Program program(command);
    ASSERT_TRUE(reads(program, "saved ")) << program.error_so_far();
    const bool killed = procs::kill_in_the_middle(program.pid(), 2);
    kills += killed;
    EXPECT_EQ(program.finish().code, killed ? -SIGKILL : 0);
    EXPECT_EQ(orphanage.survivors(), 0);
    std::filesystem::remove_all(place() + "/step-000012");  // so that the next run has something to save
  }
  EXPECT_GT(kills, 0);
  const Result last = run(command);
  EXPECT_EQ(last.code, 0) << last.err;
  EXPECT_EQ(losses(folder_, "a.json"), losses(folder_, "whole.json"));
}

// At random moments, most of them while something is written, synced or renamed, any rank, or the launcher while its
// ranks run, is killed:
// what was published is whole, and the run that goes on ends with the bits of one that was left alone.
// ZERO_TEST_KILLS=200 kills as often.
TEST_F(Resume, SurvivesBeingKilledAtAnyMoment) {
  const std::string alone = folder_.path("alone");
  ASSERT_EQ(run(train({"--plan", "zero3", "--save-to", alone}, "whole.json")).code, 0);
  const Words command = train(
      {"--plan", "zero3", "--save-to", place(), "--save-every", "1", "--keep", "3", "--resume", "auto"}, "a.json");
  const char* const asked = std::getenv("ZERO_TEST_KILLS");
  const int kills = asked ? std::atoi(asked) : 12;
  const procs::Orphanage orphanage;
  std::minstd_rand random(1);
  for (int kill = 0; kill < kills; ++kill) {
    SCOPED_TRACE(kill);
    {
      Program program(command);
      if (!program.ends_within(std::chrono::milliseconds(300 + random() % 1200))) {
        const int victim = static_cast<int>(random() % 3);
        const pid_t rank = victim == 2 ? 0 : procs::rank_of(program.pid(), victim);
        if (victim == 2) procs::kill_in_the_middle(program.pid(), 2);
        if (rank > 0) ::kill(rank, SIGKILL);
      }
      program.finish();
    }
    EXPECT_EQ(orphanage.survivors(), 0);
    if (!has_checkpoints()) continue;
    const Result verified = run(zero({"checkpoint", "verify", place()}));
    ASSERT_EQ(verified.code, 0) << verified.out << verified.err;
    if (contains(verified.out, "step-000012")) std::filesystem::remove_all(place() + "/step-000012");
  }
  const Result last = run(command);
  ASSERT_EQ(last.code, 0) << last.err;
  EXPECT_EQ(losses(folder_, "a.json"), losses(folder_, "whole.json"));
  const std::string end = "/step-000012";
  const Result same = run(zero({"checkpoint", "diff", alone + end, place() + end}));
  EXPECT_EQ(same.code, 0) << same.out << same.err;
  for (const auto& entry : std::filesystem::directory_iterator(place()))
    EXPECT_TRUE(entry.path().filename() == ".lock" || entry.path().filename().string().size() == end.size() - 1)
        << entry.path() << " is left";
}

// By a signal to any of its processes.
TEST_F(Resume, SavesAndEndsWhenItIsAsked) {
  enum Hearer { launcher, keeper, rank };
  for (const auto& [signal, hearer] :
       {std::pair{SIGTERM, launcher}, {SIGTERM, keeper}, {SIGUSR1, keeper}, {SIGUSR1, rank}}) {
    SCOPED_TRACE(hearer);
    const std::string folder = folder_.path("signal" + std::to_string(signal) + std::to_string(hearer));
    Program program(endless(train({"--save-to", folder, "--resume", "auto"}, "a.json")));
    ASSERT_TRUE(reads(program, "step 1 ")) << program.error_so_far();
    const pid_t second = procs::rank_of(program.pid(), 1);
    ::kill(hearer == launcher ? program.pid() : hearer == keeper ? procs::parent_of(second) : second, signal);
    const Result stopped = program.finish();
    EXPECT_EQ(stopped.code, 3) << stopped.err;
    EXPECT_TRUE(contains(stopped.err, "stopped after step ")) << stopped.err;
    EXPECT_TRUE(contains(stopped.out, "saved " + folder + "/step-")) << stopped.out;
  }
}

// By torchrun, say.
TEST_F(Resume, GoesOnByItselfWhereItWasStartedAgain) {
  ASSERT_EQ(run(train({"--save-to", place(), "--save-every", "6"}, "a.json")).code, 0);
  std::filesystem::remove_all(place() + "/step-000012");
  const Words command = zero(joined(joined({"train"}, folder_.small({"--steps", "12", "--eval-every", "4"})),
                                    {"--save-to", place(), "--json", folder_.path("b.json")}));
  const procs::Port port;
  std::vector<procs::Variables> ranks;
  for (int rank = 0; rank < 2; ++rank)
    ranks.push_back(procs::with(procs::rank_variables(rank, 2, port.number()), {{"TORCHELASTIC_RESTART_COUNT", "1"}}));
  const std::vector<Result> results = procs::run_together(command, ranks);
  for (const Result& result : results) ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_TRUE(contains(results[0].out, "goes on after step 6 ")) << results[0].out;
  EXPECT_EQ(losses(folder_, "b.json"), losses(folder_, "a.json"));
}

// A rank is killed once; all are started again, and go on from what was saved.
TEST_F(Resume, IsStartedAgainWhereARankDies) {
  Program left_alone(endless(train({"--save-to", folder_.path("alone"), "--save-every", "12"}, "whole.json")));
  ASSERT_TRUE(reads(left_alone, "saved ")) << left_alone.error_so_far();
  ::kill(left_alone.pid(), SIGTERM);
  EXPECT_EQ(left_alone.finish().code, 3);
  Program program(endless(train({"--save-to", place(), "--save-every", "1", "--restarts", "2"}, "a.json")));
  ASSERT_TRUE(reads(program, "saved ")) << program.error_so_far();
  ::kill(procs::rank_of(program.pid(), 1), SIGKILL);
  ASSERT_TRUE(reads(program, "goes on after step ")) << program.error_so_far();
  ASSERT_TRUE(reads(program, "saved ")) << program.error_so_far();
  ::kill(program.pid(), SIGTERM);
  const Result result = program.finish();
  EXPECT_EQ(result.code, 3) << result.err;
  EXPECT_TRUE(contains(result.err, "all ranks are started again, restart 1 of 2")) << result.err;
  const Curve whole = losses(folder_, "whole.json"), after = losses(folder_, "a.json");
  ASSERT_GE(whole.size(), 12u);
  ASSERT_GT(after.size(), 1u);
  const auto both = static_cast<std::ptrdiff_t>(std::min(whole.size(), after.size()));
  EXPECT_TRUE(std::equal(whole.begin(), whole.begin() + both, after.begin()));
}

TEST(Restarts, HaveABudgetAndTellTheRanksOfIt) {
  const Result never = run(zero({"launch", "-n", "2", "--restarts", "2", "--no-prefix", "--", "sh", "-c",
                                 "echo start $TORCHELASTIC_RESTART_COUNT; exit 7"}));
  EXPECT_EQ(never.code, 7);
  for (const char* start : {"start 0", "start 1", "start 2"}) EXPECT_TRUE(contains(never.out, start)) << never.out;
  EXPECT_FALSE(contains(never.out, "start 3")) << never.out;
  EXPECT_TRUE(contains(never.err, "they are not started again: restarts within an hour, 2 of 2")) << never.err;
  const Result second =
      run(zero({"launch", "-n", "2", "--restarts", "5", "--", "sh", "-c", "test $TORCHELASTIC_RESTART_COUNT = 1"}));
  EXPECT_EQ(second.code, 0) << second.err;
  EXPECT_EQ(run(zero({"launch", "-n", "1", "--", "false"})).code, 1);
}

// Not even where a rank had failed before: who ends a run does not want another.
TEST(Restarts, AreNotOfARunThatIsEnded) {
  const Folder folder;
  ASSERT_EQ(::mkfifo(folder.path("ready").c_str(), 0600), 0);
  const std::string fails = "cat '" + folder.path("ready") + "' && exit 7; ";
  const std::string waits = "trap 'trap \"exit 0\" TERM; echo told' TERM; echo > '" + folder.path("ready") +
                            "'; tail -f /dev/null & while :; do wait; done";
  Program program(zero({"launch", "-n", "2", "--restarts", "5", "--grace", "3600", "--no-prefix", "--", "sh", "-c",
                        "test $RANK = 0 && " + fails + waits}));
  ASSERT_TRUE(reads(program, "told")) << program.error_so_far();
  ::kill(program.pid(), SIGTERM);
  const Result result = program.finish();
  EXPECT_EQ(result.code, 7);
  EXPECT_FALSE(contains(result.err, "started again")) << result.err;
}

TEST(Restarts, AreNotOfWhatIsWrongEveryTime) {
  const Folder folder;
  const Result result = run(
      zero(joined({"train"}, folder.small({"--restarts", "3", "--save-to", folder.path("run"), "--lr", "nonsense"}))));
  EXPECT_EQ(result.code, 2);
  EXPECT_FALSE(contains(result.err, "started again")) << result.err;
}

TEST_F(Resume, TellsOfACheckpointThatCannotBeSaved) {
  const Words head = {"--save-to", "/proc/nothing/run", "--save-every", "3"};
  const Result before = run(train(head, "a.json"));
  EXPECT_EQ(before.code, 1) << "before training starts";
  EXPECT_TRUE(contains(before.err, "/proc/nothing")) << before.err;
  EXPECT_FALSE(contains(before.out, "step 1 ")) << before.out;
}

}  // namespace resume_test
