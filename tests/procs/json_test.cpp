// The JSON that commands write, and docs/json.md.
#include <gtest/gtest.h>

#include "documented.h"
#include "procs/zero_program.h"

namespace json_test {

using documented::Json;
using documented::Schema;
using procs::Folder;
using procs::joined;
using procs::Result;
using procs::run;
using procs::Words;
using procs::zero;

Schema schema(const std::string& name) {
  return {ZERO_SOURCE_DIR "/docs/json.md", name};
}

Json document(const Folder& folder, const char* name) {
  return Json::parse(procs::read_all(folder.path(name)));
}

Result run_apart(const Folder& folder, const Words& arguments) {
  return run(zero(arguments), {{"XDG_CACHE_HOME", folder.path("cache")}});
}

TEST(JsonOfCommands, TrainAndCompareWriteWhatIsDocumented) {
  const Folder folder;
  Schema documented = schema("zero.report/2");
  const Words options = folder.small({"--ranks", "2", "--steps", "2", "--json", folder.path("out")});
  std::filesystem::create_directory(folder.path("disk"));
  const Words on_disk{"--offload", "optimizer=disk", "--disk", folder.path("disk")};
  const Result within =
      run_apart(folder, joined({"train", "--activation-budget", "80%", "--gather-in", "int8"}, options));
  ASSERT_EQ(within.code, 0) << within.err;
  documented.check(document(folder, "out"));
  const Result trained = run_apart(
      folder, joined(joined({"train", "--timeline", "--eval-every", "1", "--plan", "zero2"}, on_disk), options));
  ASSERT_EQ(trained.code, 0) << trained.err;
  documented.check(document(folder, "out"));
  EXPECT_EQ(documented.missing("command"), "");
  const Result compared = run_apart(folder, joined({"compare", "--plans", "ddp,zero3"}, options));
  ASSERT_EQ(compared.code, 0) << compared.err;
  documented.check(document(folder, "out"));
  EXPECT_EQ(documented.missing(), "");
}

// Whatever is given comes back, and what is not has its default.
TEST(JsonOfCommands, AReportSaysHowToRepeatItsRuns) {
  const Folder folder;
  const Words given{"--ranks",
                    "2",
                    "--steps",
                    "3",
                    "--seed",
                    "18446744073709551615",
                    "--precision",
                    "bf16",
                    "--schedule",
                    "linear",
                    "--warmup",
                    "1",
                    "--clip",
                    "0.5",
                    "--loss-scale",
                    "2",
                    "--reduce-in",
                    "fp32",
                    "--optimizer",
                    "lion",
                    "--gather-in",
                    "fp8",
                    "--fp32-norms",
                    "--reproducible",
                    "--threads",
                    "2",
                    "--fp8-scaling",
                    "delayed",
                    "--resident-budget",
                    "1MB",
                    "--recompute",
                    "selective",
                    "--loss-pieces",
                    "3",
                    "--json",
                    folder.path("out")};
  const Result trained = run_apart(folder, joined({"train"}, folder.small(given)));
  ASSERT_EQ(trained.code, 0) << trained.err;
  const Json report = document(folder, "out");
  const Json expected{{"seed", 18446744073709551615U},
                      {"steps", 3},
                      {"schedule", "linear"},
                      {"warmup", 1},
                      {"clip", 0.5},
                      {"loss_scale", 2.0},
                      {"reduce_in", "fp32"},
                      {"optimizer", "lion"},
                      {"lr", 1e-4},
                      {"gather_in", "fp8"},
                      {"fp32_norms", true},
                      {"reproducible", true},
                      {"threads", 2},
                      {"fp8_scaling", "delayed"},
                      {"resident_budget", 1'000'000},
                      {"recompute", "selective"},
                      {"loss_pieces", 3},
                      {"data", folder.path("text")},
                      {"tokens", 0},
                      {"eval_every", 0},
                      {"precision", "bf16"}};
  for (const auto& [key, value] : expected.items()) EXPECT_EQ(report.at(key), value) << key;
}

TEST(JsonOfCommands, PlanWritesWhatIsDocumented) {
  const Folder folder;
  Schema plan = schema("zero.plan/1"), file = schema("zero.plan-file/1");
  const Result fit = run_apart(folder, {"plan", "--model", "7b", "--ranks", "8", "--batch", "2", "--device-memory",
                                        "80GB", "--fit", "--out", folder.path("plan"), "--json", folder.path("out")});
  ASSERT_EQ(fit.code, 0) << fit.err << fit.out;
  plan.check(document(folder, "out"));
  file.check(document(folder, "plan"));
  const Result read = run_apart(folder, {"plan", "--model", "micro", "--ranks", "8", "--ds-config",
                                         ZERO_SOURCE_DIR "/examples/ds_config.json", "--json", folder.path("out")});
  ASSERT_EQ(read.code, 0) << read.err;
  plan.check(document(folder, "out"));
  const Result on_disk =
      run_apart(folder, {"plan", "--model", "micro", "--ranks", "2", "--profile", "h100", "--offload", "optimizer=disk",
                         "--host-memory", "1TB", "--disk-space", "1TB", "--json", folder.path("out")});
  ASSERT_EQ(on_disk.code, 0) << on_disk.err;
  plan.check(document(folder, "out"));
  const Result too_much = run_apart(folder, {"plan", "--model", "micro", "--ranks", "2", "--profile", "h100", "--plans",
                                             "zero2", "--offload", "optimizer=host,gradient=disk", "--host-memory",
                                             "1MB", "--disk-space", "100KB", "--json", folder.path("out")});
  ASSERT_EQ(too_much.err, "");
  plan.check(document(folder, "out"));
  const Result within =
      run_apart(folder, {"plan", "--model", "7b", "--ranks", "8", "--batch", "1", "--device-memory", "40GB", "--plans",
                         "zero3", "--fit", "--out", folder.path("plan"), "--json", folder.path("out")});
  ASSERT_EQ(within.code, 0) << within.err;
  plan.check(document(folder, "out"));
  const Result between =
      run_apart(folder, {"plan", "--model", "micro", "--ranks", "4", "--hosts", "2", "--shard-ranks", "2", "--profile",
                         "h100", "--plans", "zero3,zeropp", "--json", folder.path("out")});
  ASSERT_EQ(between.code, 0) << between.err;
  plan.check(document(folder, "out"));
  EXPECT_EQ(file.missing(), "");
  EXPECT_EQ(plan.missing(), "");
}

// Small: that all is there, not how fast it is. Nothing is left in the folder.
TEST(JsonOfCommands, BenchDiskWritesAndPrintsWhatIsDocumented) {
  const Folder folder;
  std::filesystem::create_directory(folder.path("disk"));
  Schema documented = schema("zero.bench-disk/1");
  const Words small{"bench", "disk", folder.path("disk"), "--size", "1MiB", "--block", "64KiB", "--rounds", "2"};
  const Result alone = run_apart(folder, joined(small, {"--depth", "4", "--queue", "threads", "--json", "-"}));
  ASSERT_EQ(alone.code, 0) << alone.err;
  const Json json = Json::parse(alone.out);
  documented.check(json);
  EXPECT_EQ(documented.missing(), "");
  const Json expected{{"size", 1 << 20}, {"rounds", 2}, {"block", 1 << 16}, {"depth", 4}, {"queue", "threads"}};
  for (const auto& [key, value] : expected.items()) EXPECT_EQ(json.at(key), value) << key;
  ASSERT_EQ(json.at("results").size(), 2U);
  for (const Json& each : json.at("results"))
    for (const char* by : {"store", "disk"}) {
      const Json& rate = each.at(by);
      EXPECT_GT(rate.at("bandwidth").get<double>(), 0);
      EXPECT_LE(rate.at("p50_seconds").get<double>(), rate.at("p99_seconds").get<double>());
    }
  for (const Words& more : {Words{}, Words{"--checks", "--off-pages"}, Words{"--cached"}}) {
    const Result shown = run_apart(folder, joined(small, more));
    ASSERT_EQ(shown.code, 0) << shown.err;
    for (const char* part : {"disk: '", "operations of 65536 bytes, 128 at once", "8.0 MiB written and read", "p99 ms",
                             "write  store", "write  disk", "read   store", "read   disk"})
      EXPECT_TRUE(procs::contains(shown.out, part)) << part << " is not in\n" << shown.out;
    EXPECT_EQ(procs::contains(shown.out, "checked"), more.size() == 2);
    EXPECT_EQ(procs::contains(shown.out, "(through the page cache)"), more.size() == 1);
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder.path("disk")));
}

// A profile to start from: what was measured, and what the program has, is printed as it would be read.
TEST(JsonOfCommands, AProfileIsShownWithoutMeasuring) {
  const Folder folder;
  Schema profile = schema("zero.profile/1");
  const Result given = run_apart(folder, {"bench", "profile", "--show", "h100"});
  ASSERT_EQ(given.code, 0) << given.err;
  profile.check(Json::parse(given.out));
  EXPECT_EQ(profile.missing(), "");
  std::ofstream(folder.path("mine.json")) << given.out;
  const Result read = run_apart(folder, {"bench", "profile", "--show", folder.path("mine.json")});
  EXPECT_EQ(read.out, given.out) << read.err;
  const Result planned =
      run_apart(folder, {"plan", "--model", "micro", "--profile", folder.path("mine.json"), "--json", "-"});
  EXPECT_EQ(Json::parse(planned.out).at("profile_file"), folder.path("mine.json")) << planned.err;
  std::filesystem::copy_file(procs::kZero, folder.path("zero"));  // away from what loads LibTorch
  const Result alone = run({folder.path("zero"), "bench", "profile", "--show", "h100"});
  EXPECT_EQ(alone.out, given.out) << alone.err;
  EXPECT_EQ(run_apart(folder, {"bench", "profile", "--show", "b300"}).code, 2);
  EXPECT_EQ(run_apart(folder, {"bench", "profile", "--show", "h100", "--ranks", "2"}).code, 2);
}

}  // namespace json_test
