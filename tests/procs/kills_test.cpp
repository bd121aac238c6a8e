// A rank dies by SIGKILL at any moment of a training, over and over: whatever it was doing, the others are told who
// died, and nothing stays. A rank may wait for its peers for a day, so whoever is left waiting is found by the
// watchdog. ZERO_TEST_KILLS=200 kills as often.
#include <gtest/gtest.h>

#include <random>
#include <regex>
#include <set>

#include "procs/zero_program.h"

namespace kills_test {

using procs::contains;
using procs::joined;
using procs::Program;
using procs::Result;
using procs::said_by;
using procs::Variables;
using procs::Words;
using procs::zero;

constexpr int kRanks = 3;
constexpr int kKills = 24;
constexpr std::chrono::hours kWatchdog{1};
const std::string kDay = "86400";
const char* const kMark = "ZERO_TEST_KILL";

struct Phase {
  const char* name;
  int microseconds;  // about as long as it takes
};

constexpr Phase kPhases[] = {{"training", 30'000}, {"joined", 15'000}, {"training", 5'000}, {"start", 150'000}};
constexpr const char* kPlans[] = {"zero3", "zero2", "zero1", "ddp", "zero3"};

struct Kill {
  Kill(int index, std::mt19937& random) : number(index), victim(static_cast<int>(random() % kRanks)) {
    const Phase& phase = kPhases[index % 4];
    const auto delay = random() % static_cast<unsigned>(phase.microseconds);
    arguments = {"killed", std::to_string(victim), kPlans[index % 5], phase.name, std::to_string(delay)};
    check = random() % 2 ? "1" : "0";
  }

  std::string text() const {
    std::string all = "kill " + std::to_string(number) + ": ZERO_CHECK=" + check + " victim";
    for (const std::string& argument : arguments) all += " " + argument;
    return all;
  }

  int number;
  int victim;
  Words arguments;
  std::string check;
};

// What is under /dev/shm; parts of Open MPI, which another test may be running, have names of their own.
std::set<std::string> named_memory() {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm"))
    if (!contains(entry.path().string(), "vader_segment")) names.insert(entry.path());
  return names;
}

// An empty folder, which must be left empty.
class EmptyFolder {
 public:
  EmptyFolder() { ::mkdtemp(path_.data()); }
  ~EmptyFolder() {
    EXPECT_TRUE(std::filesystem::is_empty(path_));
    std::filesystem::remove_all(path_);
  }
  EmptyFolder(const EmptyFolder&) = delete;
  EmptyFolder& operator=(const EmptyFolder&) = delete;

  const std::string& path() const { return path_; }

 private:
  std::string path_ = (std::filesystem::temp_directory_path() / "zero_kills.XXXXXX").string();
};

class Kills : public testing::Test {
 protected:
  void expect_told_and_gone(const Kill& kill) {
    SCOPED_TRACE(kill.text());
    const EmptyFolder folder;
    const std::string mark = std::to_string(::getpid()) + "-" + std::to_string(kill.number);
    {
      Program program(
          zero(joined({"launch", "-n", std::to_string(kRanks), "--grace", kDay, ZERO_VICTIM}, kill.arguments)),
          {{"ZERO_TIMEOUT", kDay}, {"ZERO_CHECK", kill.check}, {"TMPDIR", folder.path()}, {kMark, mark}});
      if (program.ends_within(kWatchdog)) {
        expect_told(program.finish(), kill.victim);
      } else {
        report_hang(program);
      }
    }
    EXPECT_EQ(orphanage_.survivors(), 0);
    EXPECT_EQ(procs::processes_with(kMark, mark), std::vector<pid_t>()) << "which may hold memory";
    EXPECT_EQ(named_memory(), named_memory_);
  }

  // Where the deaths fell.
  std::map<std::string, int> deaths_;

 private:
  void expect_told(const Result& result, int victim) {
    EXPECT_EQ(result.code, 137);
    const std::string rank = "rank " + std::to_string(victim);
    EXPECT_TRUE(contains(result.err, "zero: " + rank + " was killed by signal 9 (Killed)\n")) << result.err;
    EXPECT_EQ(said_by(victim, result.err), "");
    std::string operation = "start-up";
    for (int survivor = 0; survivor < kRanks; ++survivor)
      if (survivor != victim) expect_told(survivor, rank + " died", result, operation);
    ++deaths_[operation];
  }

  // The launcher ends a rank that has not joined when another has died.
  static void expect_told(int survivor, const std::string& why, const Result& result, std::string& operation) {
    const std::string error = said_by(survivor, result.err);
    if (error.empty() && !contains(said_by(survivor, result.out), "joined")) return;
    const std::regex expected("^CommError: rank " + std::to_string(survivor) + ": ([a-z_]+)( #[0-9]+.*)?: " + why);
    std::smatch found;
    EXPECT_TRUE(std::regex_search(error, found, expected)) << result.err << result.out;
    if (!found.empty()) operation = found[1];
  }

  static void report_hang(const Program& program) {
    std::string waiting;
    for (int rank = 0; rank < kRanks; ++rank)
      if (procs::rank_of(program.pid(), rank)) waiting += " " + std::to_string(rank);
    ADD_FAILURE() << "ranks" << waiting << " wait for ever; so far they said:\n" << program.error_so_far();
  }

  const procs::Orphanage orphanage_;
  const std::set<std::string> named_memory_ = named_memory();
};

TEST_F(Kills, WhateverARankDoesTheOthersAreToldAndNothingStays) {
  const char* const number = std::getenv("ZERO_TEST_KILLS");
  const int kills = number ? std::atoi(number) : kKills;
  std::mt19937 random(1);
  for (int i = 0; i < kills; ++i) expect_told_and_gone(Kill(i, random));
  for (const auto& [operation, count] : deaths_) RecordProperty("deaths_in_" + operation, count);
}

}  // namespace kills_test
