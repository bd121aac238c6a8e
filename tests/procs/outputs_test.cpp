// What zero prints and writes: help, files that are there already, standard output.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "procs/zero_program.h"

namespace outputs_test {

using nlohmann::json;
using procs::contains;
using procs::Folder;
using procs::joined;
using procs::kZero;
using procs::Result;
using procs::run;
using procs::Words;
using procs::zero;

namespace fs = std::filesystem;

const Words kSmallPlan{"plan", "--model", "micro", "--device-memory", "1GB", "--fit"};

Words training(const Folder& folder, const Words& more) {
  return joined({"train"}, folder.small(joined({"--steps", "2"}, more)));
}

std::size_t width_of(const std::string& line) {
  return static_cast<std::size_t>(std::count_if(line.begin(), line.end(), [](char c) { return (c & 0xc0) != 0x80; }));
}

TEST(Help, FitsEightyColumns) {
  for (const Words& command : {Words{},
                               {"train"},
                               {"compare"},
                               {"plan"},
                               {"bench"},
                               {"bench", "profile"},
                               {"launch"},
                               {"checkpoint"},
                               {"checkpoint", "list"},
                               {"checkpoint", "show"},
                               {"checkpoint", "verify"},
                               {"checkpoint", "diff"},
                               {"checkpoint", "prune"}}) {
    const Result result = run(zero(joined(command, {"--help"})));
    EXPECT_EQ(result.code, 0) << result.err;
    std::istringstream lines(result.out);
    int count = 0;
    for (std::string line; std::getline(lines, line); ++count) EXPECT_LE(width_of(line), 80u) << line;
    EXPECT_GT(count, 5) << result.out;
  }
}

TEST(Help, SaysEveryDefaultAndEveryChoice) {
  const Result result = run(zero({"train", "--help"}));
  std::istringstream words(result.out);
  std::string text;  // without the ends of lines
  for (std::string word; words >> word;) text += word + " ";
  for (const char* part :
       {"--steps INT Steps to train [20]", "adamw-8bit", "bf16-kahan", "[cosine]", "-n,--ranks INT",
        "--resident-budget SIZE", "--tensorboard FOLDER", "none, layers, selective [none]", "--loss-pieces INT"})
    EXPECT_TRUE(contains(text, part)) << part << " in " << text;
}

TEST(Help, HasAVersion) {
  const Result result = run(zero({"--version"}));
  EXPECT_EQ(result.code, 0);
  EXPECT_TRUE(result.out.starts_with("zero ") && std::isdigit(result.out[5]) && result.out.ends_with('\n'))
      << result.out;
  EXPECT_EQ(std::count(result.out.begin(), result.out.end(), '\n'), 1);
}

void expect_plan(const Folder& folder, const std::string& name) {
  EXPECT_TRUE(folder.document(name).contains("plan")) << procs::read_all(folder.path(name));
}

Result plan_to(const std::string& path) {
  Result result = run(zero(joined(kSmallPlan, {"--out", path})));
  EXPECT_EQ(result.code, 0) << result.err;
  return result;
}

TEST(Outputs, KeepTheModeOfWhatIsThere) {
  const Folder folder;
  for (const mode_t mode : {0600, 0640, 0604}) {
    std::ofstream(folder.path("plan")) << "old";
    ASSERT_EQ(::chmod(folder.path("plan").c_str(), mode), 0);
    plan_to(folder.path("plan"));
    expect_plan(folder, "plan");
    struct stat status {};
    ASSERT_EQ(::stat(folder.path("plan").c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 07777, mode);
  }
}

TEST(Outputs, AreWrittenWhereALinkLeads) {
  const Folder folder;
  fs::create_directory(folder.path("there"));
  std::ofstream(folder.path("there/old")) << "old";
  ASSERT_EQ(::chmod(folder.path("there/old").c_str(), 0600), 0);
  for (const char* target : {"there/old", "there/new"}) {
    fs::remove(folder.path("link"));
    fs::create_symlink(target, folder.path("link"));
    fs::remove(folder.path("second"));
    fs::create_symlink(folder.path("link"), folder.path("second"));
    plan_to(folder.path("second"));
    EXPECT_TRUE(fs::is_symlink(folder.path("second")) && fs::is_symlink(folder.path("link")));
    expect_plan(folder, target);
  }
  EXPECT_EQ(fs::status(folder.path("there/old")).permissions(), fs::perms(0600));
}

TEST(Outputs, MayHaveTheLongestName) {
  const Folder folder;
  const std::string name(255, 'n');
  plan_to(folder.path(name));
  expect_plan(folder, name);
}

TEST(Outputs, WithoutRoomLeaveWhatWasThere) {
  const Folder folder;
  fs::create_directory(folder.path("full"));
  std::ofstream(folder.path("full/plan")) << "old";
  const Result result = run(joined({"bash", "-c", "ulimit -f 1; trap '' XFSZ; exec \"$0\" \"$@\""},
                                   zero({"plan", "--model", "micro", "--json", folder.path("full/plan")})));
  EXPECT_EQ(result.code, 1);
  EXPECT_TRUE(contains(result.err, "full/plan': File too large")) << result.err;
  EXPECT_EQ(procs::read_all(folder.path("full/plan")), "old");
  EXPECT_EQ(std::distance(fs::directory_iterator(folder.path("full")), {}), 1);
}

// Standard output alone, whoever starts the ranks; the text goes to standard error.
TEST(StandardOutput, HasTheJsonOfARunAlone) {
  const Folder folder;
  const Words alone = zero(training(folder, {"--json", "-"})), two = joined(alone, {"--ranks", "2"});
  for (const Words& command : {alone, two, joined({kZero, "launch", "--no-prefix", "-n", "2"}, alone)}) {
    const Result result = run(joined({"env", "-C", folder.path("")}, command));
    EXPECT_EQ(result.code, 0) << result.err;
    ASSERT_TRUE(json::accept(result.out)) << result.out;
    EXPECT_EQ(json::parse(result.out).at("runs").at(0).at("losses").size(), 2u);
    EXPECT_TRUE(contains(result.err, "step 2  loss ")) << result.err;
    EXPECT_FALSE(folder.has("-"));
  }
}

TEST(StandardOutput, HasTheJsonOfAComparisonAlone) {
  const Folder folder;
  const Words options = folder.small({"--steps", "2", "--plans", "ddp,zero1", "--ranks", "2", "--json", "-"});
  const Result result = run(zero(joined({"compare"}, options)));
  EXPECT_EQ(result.code, 0) << result.err;
  ASSERT_TRUE(json::accept(result.out)) << result.out;
  EXPECT_EQ(json::parse(result.out).at("runs").size(), 2u);
  EXPECT_TRUE(contains(result.err, "losses identical: yes")) << result.err;
}

TEST(StandardOutput, HasAPageOrATraceAlone) {
  const Folder folder;
  const Result page = run(zero(training(folder, {"--html", "-", "--json", folder.path("out")})));
  EXPECT_EQ(page.code, 0) << page.err;
  EXPECT_TRUE(page.out.starts_with("<!") && page.out.ends_with("</html>\n")) << page.out.substr(0, 200);
  EXPECT_TRUE(folder.has("out"));
  const Words compare = folder.small({"--steps", "2", "--plans", "ddp", "--ranks", "2", "--trace", "-"});
  const Result trace = run(zero(joined({"compare"}, compare)));
  EXPECT_EQ(trace.code, 0) << trace.err;
  EXPECT_TRUE(json::accept(trace.out)) << trace.out.substr(0, 200);
}

TEST(StandardOutput, HasAPlanFileAlone) {
  const Folder folder;
  const Result result = run(joined({"env", "-C", folder.path("")}, zero(joined(kSmallPlan, {"--out", "-"}))));
  EXPECT_EQ(result.code, 0) << result.err;
  ASSERT_TRUE(json::accept(result.out)) << result.out;
  EXPECT_TRUE(json::parse(result.out).contains("plan"));
  EXPECT_FALSE(folder.has("-"));
  const Result none = run(zero({"plan", "--model", "7b", "--device-memory", "1GB", "--fit", "--out", "-"}));
  EXPECT_EQ(none.code, 1);
  EXPECT_EQ(none.out, "");
  EXPECT_EQ(none.err, "zero: no plan fits\n");
}

// No finite gradient: a loss scale beyond what fp16 holds.
TEST(SkippedSteps, OfAWholeRunAreAFailure) {
  const Folder folder;
  const Words scale{"--precision", "fp16", "--loss-scale", "1073741824", "--json", folder.path("out")};
  for (const Words& command : {training(folder, scale), joined(training(folder, scale), {"--ranks", "2"})}) {
    fs::remove(folder.path("out"));
    const Result result = run(zero(command));
    EXPECT_EQ(result.code, 1) << result.err;
    EXPECT_TRUE(contains(result.err, "zero3: every step was skipped, since no gradient was finite")) << result.err;
    EXPECT_TRUE(folder.has("out"));
  }
  fs::remove(folder.path("out"));
  const Words options = folder.small(joined({"--steps", "2", "--plans", "ddp,zero1", "--ranks", "2"}, scale));
  const Result compared = run(zero(joined({"compare"}, options)));
  EXPECT_EQ(compared.code, 1) << compared.err;
  EXPECT_EQ(folder.document("out").at("runs").size(), 2u);
  for (const char* plan : {"ddp: every step was skipped", "zero1: every step was skipped"})
    EXPECT_TRUE(contains(compared.err, plan)) << compared.err;
}

}  // namespace outputs_test
