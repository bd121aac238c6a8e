// What zero predicts, and the files that show it, as a user meets them.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>

#include "procs/zero_program.h"

namespace plan_test {

using nlohmann::json;
using procs::contains;
using procs::Folder;
using procs::joined;
using procs::Result;
using procs::run;
using procs::Variables;
using procs::Words;
using procs::zero;

// Without the profile that a user of this machine may have measured.
Result run_apart(const Folder& folder, const Words& arguments) {
  return run(zero(arguments), {{"XDG_CACHE_HOME", folder.path("cache")}});
}

json planned(const Folder& folder, const Words& arguments) {
  const Result result = run_apart(folder, joined({"plan", "--json", "-"}, arguments));
  EXPECT_EQ(result.code, 0) << result.err;
  return json::parse(result.out);
}

void expect_refused(const Folder& folder, const Words& arguments, const char* words) {
  const Result result = run_apart(folder, arguments);
  EXPECT_EQ(result.code, 2);
  EXPECT_TRUE(contains(result.err, words)) << result.err;
}

// What the program writes of it.
json reported(const Folder& folder, const Words& arguments) {
  const Result result = run_apart(folder, joined(arguments, {"--json", folder.path("out")}));
  EXPECT_EQ(result.code, 0) << result.err << result.out;
  return folder.document("out");
}

TEST(PlanCommand, PrintsThePapersFigures) {
  const Folder folder;
  const json answer = planned(folder, {"--parameters", "7.5e9", "--ranks", "64"});
  EXPECT_EQ(answer.at("ranks"), 64);
  EXPECT_EQ(answer.at("parameters"), 7'500'000'000);
  const double expected[] = {120, 31.4, 16.6, 1.88};
  for (std::size_t i = 0; i < 4; ++i) EXPECT_DOUBLE_EQ(answer.at("plans").at(i).at("state_gb"), expected[i]);
  for (const json& plan : answer.at("plans"))
    for (const char* key :
         {"plan", "parameter_bytes", "gradient_bytes", "optimizer_bytes", "state_gb", "activation_bytes",
          "buffer_bytes", "peak_bytes", "wire_bytes_per_step", "step_seconds", "fits"})
      EXPECT_TRUE(plan.contains(key)) << key;
}

TEST(PlanCommand, AnswersForATrillionParametersOnTenThousandRanks) {
  const Folder folder;
  const json answer = planned(folder, {"--parameters", "1T", "--ranks", "10000", "--hosts", "1250"});
  EXPECT_DOUBLE_EQ(answer.at("plans").at(0).at("state_gb"), 16000);
  EXPECT_DOUBLE_EQ(answer.at("plans").at(3).at("state_gb"), 1.6);
}

TEST(PlanCommand, AnswersOncePerPlan) {
  const Folder folder;
  const json plans = planned(folder, {"--model", "7b", "--plans", "zero3,ddp,zero3"}).at("plans");
  ASSERT_EQ(plans.size(), 2u);
  EXPECT_EQ(plans.at(0).at("plan"), "zero3");
}

// zero plan, without LibTorch, and the engine's own account.
TEST(PlanCommand, PredictsWhatCompareDoes) {
  const Folder folder;
  for (const Words& setting :
       {Words{"--precision", "fp32"}, Words{"--precision", "bf16", "--accumulate", "2"},
        Words{"--precision", "bf16", "--reduce-in", "fp32", "--resident-budget", "1MB"},
        Words{"--precision", "bf16", "--gather-in", "fp8", "--plans", "zero3"},
        Words{"--precision", "fp32", "--recompute", "layers", "--loss-pieces", "2", "--plans", "zero3"}}) {
    const Words common = joined({"--model", "micro", "--seq", "24", "--batch", "2", "--ranks", "2"}, setting);
    const json answer = planned(folder, common);
    const json report =
        reported(folder, joined(joined({"compare"}, common), {"--data", folder.path("text"), "--steps", "2"}));
    for (std::size_t i = 0; i < answer.at("plans").size(); ++i) {
      const json& plan = answer.at("plans").at(i);
      const json& measured = report.at("runs").at(i);
      SCOPED_TRACE(plan.at("plan"));
      for (const std::string state : {"parameter", "gradient", "optimizer"})
        EXPECT_EQ(plan.at(state + "_bytes"), measured.at("state_bytes").at(state).at("measured"));
      EXPECT_EQ(plan.at("wire_bytes_per_step"), measured.at("wire_bytes_per_step").at("measured"));
      EXPECT_EQ(plan.at("peak_bytes"), measured.at("peak").at("predicted"));
    }
  }
}

TEST(PlanCommand, WritesAFileThatTrainRuns) {
  const Folder folder;
  const std::string file = folder.path("plan.json");
  const Result fit =
      run_apart(folder, {"plan", "--model", "micro", "--ranks", "2", "--batch", "2", "--seq", "24", "--device-memory",
                         "1GB", "--recompute", "layers", "--loss-pieces", "2", "--fit", "--out", file});
  ASSERT_EQ(fit.code, 0) << fit.err;
  const Words train{"train", "--plan", file, "--data", folder.path("text"), "--steps", "2"};
  const json report = reported(folder, train), plan = folder.document("plan.json");
  EXPECT_EQ(report.at("ranks"), 2);
  EXPECT_EQ(report.at("precision"), "bf16");
  EXPECT_EQ(report.at("recompute"), "layers");
  EXPECT_EQ(report.at("loss_pieces"), 2);
  EXPECT_EQ(report.at("runs").at(0).at("plan"), plan.at("plan"));
  expect_refused(folder, joined(train, {"--precision", "fp32"}), "--precision fp32 contradicts the plan file");
}

// What models are trained with, or as much as they can be; and it says so.
TEST(PlanCommand, AssumesTheSequenceThatModelsAreTrainedWith) {
  const Folder folder;
  for (const auto& [model, seq, words] :
       {std::tuple{"7b", 4096, "sequences of 4,096 tokens: --seq if not"},
        {"70b", 4096, "sequences of 4,096 tokens: --seq if not"},
        {"micro", 2048, "sequences of 2,048 tokens, as many as the model has positions: --seq if not"}}) {
    const json answer = planned(folder, {"--model", model, "--plans", "zero3"});
    EXPECT_EQ(answer.at("seq"), seq) << model;
    EXPECT_TRUE(contains(answer.at("assumed").dump(), words)) << answer.at("assumed");
  }
  const json given = planned(folder, {"--model", "7b", "--plans", "zero3", "--seq", "100"});
  EXPECT_EQ(given.at("seq"), 100);
  EXPECT_FALSE(contains(given.at("assumed").dump(), "--seq"));
}

TEST(PlanCommand, TakesANetworkInsteadOfTheProfiles) {
  const Folder folder;
  const Words options{"--model", "7b", "--ranks", "16", "--hosts", "2", "--plans", "zero3"};
  const auto with = [&](const char* network) { return planned(folder, joined(options, {"--network", network})); };
  const auto seconds = [](const json& answer) { return answer.at("plans").at(0).at("step_seconds").get<double>(); };
  const json fast = with("100Gbit"), slow = with("1GB/s");
  EXPECT_EQ(fast.at("network_bandwidth"), 12.5e9);
  EXPECT_EQ(slow.at("network_bandwidth"), 1e9);
  EXPECT_GT(seconds(slow), seconds(fast));
  EXPECT_TRUE(contains(fast.at("assumed").dump(), "the network: 100Gbit for each rank")) << fast.at("assumed");
  expect_refused(folder, joined({"plan", "--network", "100"}, options), "write 100Gbit");
  expect_refused(folder, {"plan", "--model", "7b", "--network", "100Gbit"}, "give --hosts");
}

TEST(PlanCommand, SaysTokensASecondAndModelFlopsUtilization) {
  const Folder folder;
  const json plan = planned(folder, {"--model", "7b", "--ranks", "8", "--profile", "h100"}).at("plans").at(3);
  EXPECT_NEAR(plan.at("tokens_per_second").get<double>() * plan.at("step_seconds").get<double>(), 8 * 4 * 4096, 1e-3);
  EXPECT_GT(plan.at("mfu"), 0.1);
  EXPECT_LT(plan.at("mfu"), 0.6);
  const Result text = run_apart(folder, {"plan", "--model", "7b", "--ranks", "8", "--profile", "h100"});
  EXPECT_TRUE(contains(text.out, "tokens/s")) << text.out;
  EXPECT_TRUE(contains(text.out, "MFU")) << text.out;
}

TEST(PlanCommand, TakesTheMemoryOfTheDevicesThatAProfileIsOf) {
  const Folder folder;
  const auto memory = [&](const std::vector<std::string>& more) {
    std::vector<std::string> arguments{"--model", "7b", "--ranks", "2", "--profile", "h100"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return planned(folder, arguments).at("device_memory").get<std::int64_t>();
  };
  EXPECT_EQ(memory({}), 80'000'000'000);
  EXPECT_EQ(memory({"--device-memory", "40GB"}), 40'000'000'000);
  const Result text = run_apart(folder, {"plan", "--model", "7b", "--ranks", "2", "--profile", "h100"});
  EXPECT_TRUE(contains(text.out, "estimated from data sheets, not measured")) << text.out;
  const Result fit = run_apart(folder, {"plan", "--model", "7b", "--ranks", "8", "--batch", "1", "--profile", "h100",
                                        "--fit", "--out", folder.path("plan.json")});
  EXPECT_EQ(fit.code, 0) << fit.err;
  EXPECT_TRUE(contains(fit.out, "In 80.0 GB:")) << fit.out;
}

// Over a slow link a model that the ranks of a host share is the faster one: each sends a part of it.
TEST(PlanCommand, ChoosesATensorAxisWhereALinkAsksForIt) {
  const Folder folder;
  const auto fit = [&](const std::vector<std::string>& more) {
    const Result result = run_apart(
        folder, joined({"plan", "--model", "7b", "--ranks", "32", "--hosts", "4", "--profile", "h100", "--batch", "1",
                        "--seq", "2048", "--fit", "--out", folder.path("plan.json"), "--json", folder.path("all.json")},
                       more));
    EXPECT_EQ(result.code, 0) << result.err;
    return result.out;
  };
  const std::string slow = fit({"--network", "100MB/s"});
  EXPECT_TRUE(contains(slow, "32 ranks (8 of them along the tensor axis) on 4 hosts")) << slow;
  EXPECT_TRUE(contains(slow, "a tensor axis of 8 ranks, the best of 1, 2, 4, 8, with micro-batches of 8")) << slow;
  EXPECT_EQ(folder.document("plan.json").at("tensor"), 8);
  EXPECT_EQ(folder.document("plan.json").at("batch"), 8);
  const double with = folder.document("all.json").at("plans").at(0).at("step_seconds");
  for (const std::vector<std::string>& more : {std::vector<std::string>{"--network", "100MB/s", "--tensor", "1"}, {}}) {
    EXPECT_FALSE(contains(fit(more), "tensor axis"));
    EXPECT_EQ(folder.document("plan.json").at("tensor"), 1);
    EXPECT_EQ(folder.document("plan.json").at("batch"), 1);
    const double without = folder.document("all.json").at("plans").at(0).at("step_seconds");
    EXPECT_EQ(with < .9 * without, !more.empty());
  }
}

TEST(PlanCommand, OffersTheDiskWhereNothingElseFits) {
  const Folder folder;
  const Words words{
      "plan",   "--model",         "7b",   "--ranks", "2",     "--device-memory", "50GB",  "--batch",
      "1",      "--seq",           "1024", "--plans", "zero3", "--fit",           "--out", folder.path("plan.json"),
      "--json", folder.path("out")};
  EXPECT_EQ(run_apart(folder, words).code, 1);
  const Result found = run_apart(folder, joined(words, {"--disk-space", "1TB"}));
  EXPECT_EQ(found.code, 0) << found.err;
  EXPECT_TRUE(contains(found.out, "On other tiers, of each rank, in GB")) << found.out;
  EXPECT_TRUE(contains(found.out, "; --offload optimizer=disk --disk DIR.")) << found.out;
  EXPECT_EQ(folder.document("plan.json").at("offload"), "optimizer=disk");
  const json plan = folder.document("out").at("plans").at(0);
  EXPECT_EQ(plan.at("tiers").back().at("tier"), "disk");
  EXPECT_EQ(plan.at("tiers").back().at("optimizer_bytes"), plan.at("optimizer_bytes"));
  const Result wrong = run_apart(folder, joined(words, {"--disk-space", "1"}));
  EXPECT_EQ(wrong.code, 2);
}

TEST(PlanCommand, TakesTiersTogetherOrOneByOne) {
  const Folder folder;
  const Words words{"plan", "--model", "micro", "--ranks", "2", "--plans", "zero3", "--offload", "optimizer=disk"};
  const Result apart = run_apart(folder, joined(words, {"--offload", "parameter=disk"}));
  EXPECT_EQ(apart.code, 0) << apart.err;
  Words together = words;
  together.back() += ",parameter=disk";
  EXPECT_EQ(apart.out, run_apart(folder, together).out);
  EXPECT_TRUE(contains(apart.out, "zero3, parameter and optimizer on disk")) << apart.out;
}

// Of ranks of this host, whatever the profile is of.
TEST(PlanCommand, ForeseesOfStatesOnDiskWhatARunDoes) {
  const Folder folder;
  const Words setting{"--model", "micro", "--ranks",     "2",    "--seq",     "32",
                      "--batch", "2",     "--precision", "fp32", "--offload", "optimizer=disk,gradient=disk"};
  const Result plan = run_apart(
      folder, joined(joined({"plan", "--plans", "zero3"}, setting), {"--profile", "h100", "--json", folder.path("p")}));
  const Result here =
      run_apart(folder, joined(joined({"plan", "--plans", "zero3"}, setting), {"--json", folder.path("h")}));
  const Result run =
      run_apart(folder, joined(joined({"train", "--plan", "zero3", "--data", folder.path("text")}, setting),
                               {"--steps", "2", "--disk", folder.path(""), "--json", folder.path("r")}));
  for (const Result* each : {&plan, &here, &run}) ASSERT_EQ(each->code, 0) << each->err;
  const json foreseen = folder.document("h").at("plans").at(0), ran = folder.document("r").at("runs").at(0);
  EXPECT_EQ(foreseen.at("peak_bytes"), ran.at("peak").at("predicted"));
  EXPECT_EQ(foreseen.at("wire_bytes_per_step"), ran.at("wire_bytes_per_step").at("predicted"));
  ASSERT_EQ(foreseen.at("tiers").size(), 1U);
  EXPECT_EQ(foreseen.at("tiers").at(0).at("tier"), "disk");
  // Of devices there is a tier between.
  EXPECT_EQ(folder.document("p").at("plans").at(0).at("tiers").size(), 2U);
}

// With the buffers through which they pass.
TEST(PlanCommand, ForeseesOfActivationsOnDiskWhatARunHolds) {
  const Folder folder;
  const Words setting{"train", "--model", "micro", "--ranks", "2", "--plan", "zero3", "--seq", "128", "--batch", "4"};
  const Words within{"--activation-budget", "40%", "--offload", "activation=disk", "--disk", folder.path("")};
  const Words rest{"--data", folder.path("text"), "--steps", "5", "--json", folder.path("r")};
  const Result run = run_apart(folder, joined(joined(setting, within), rest));
  ASSERT_EQ(run.code, 0) << run.err;
  const json ran = folder.document("r").at("runs").at(0);
  const double predicted = ran.at("peak").at("predicted"), measured = ran.at("peak").at("measured");
  EXPECT_GE(predicted, measured);
  EXPECT_NEAR(predicted, measured, .005 * measured);
}

TEST(PlanCommand, SaysThatNothingFits) {
  const Folder folder;
  const Result result = run_apart(folder, {"plan", "--model", "7b", "--ranks", "2", "--device-memory", "10GB", "--fit",
                                           "--out", folder.path("plan.json")});
  EXPECT_EQ(result.code, 1);
  EXPECT_TRUE(contains(result.out, "No plan fits.")) << result.out;
  EXPECT_FALSE(folder.has("plan.json"));
}

TEST(PlanCommand, ChoosesSmallerMicroBatchesAndABudgetWhereNoPlanFits) {
  const Folder folder;
  const auto fit = [&](const char* memory, const char* batch) {
    const Result result =
        run_apart(folder, {"plan", "--model", "small", "--ranks", "8", "--device-memory", memory, "--batch", batch,
                           "--seq", "256", "--plans", "zero3", "--fit", "--out", folder.path("plan.json")});
    EXPECT_EQ(result.code, 0) << result.err << result.out;
    return result.out;
  };
  const std::string within = fit("135MB", "1");
  EXPECT_TRUE(contains(within, "1. zero3, activations within 75% fits: ")) << within;
  EXPECT_TRUE(
      contains(within, " s more than with room for what was asked for; --activation-budget 75%.\n   Of its step "))
      << within;
  EXPECT_TRUE(contains(within, " s are activations that are computed again, ")) << within;
  EXPECT_EQ(folder.document("plan.json").at("activation_budget"), "75%");
  const std::string split = fit("150MB", "6");
  EXPECT_EQ(
      folder.document("plan.json").at("batch").get<int>() * folder.document("plan.json").at("accumulate").get<int>(),
      6);
  EXPECT_TRUE(contains(split, " --accumulate ") || contains(split, "--activation-budget")) << split;
}

// With both numbers, and what holds it.
TEST(ActivationBudgets, BelowTheLeastAreRefusedBeforeAnythingRuns) {
  const Folder folder;
  const Words options{"--model", "micro", "--ranks", "2", "--batch", "2", "--seq", "32", "--activation-budget",
                      "100000"};
  for (const Words& command : {Words{"plan", "--plans", "zero3"}, {"train", "--plan", "zero3"}, {"compare"}}) {
    const Result result = run_apart(folder, joined(command, options));
    EXPECT_EQ(result.code, 2) << command.front();
    EXPECT_TRUE(contains(result.err,
                         "an activation budget of 100000 bytes cannot be met: the least for this micro-batch "
                         "is about "))
        << result.err;
    EXPECT_TRUE(contains(result.err, " without a budget; most alone needs the ")) << result.err;
    EXPECT_TRUE(contains(result.err, "take smaller micro-batches")) << result.err;
    EXPECT_EQ(result.out, "");
  }
}

TEST(ActivationBudgets, AreForeseen) {
  const Folder folder;
  const json report =
      reported(folder, joined({"compare", "--model", "micro", "--ranks", "2", "--plans", "ddp,zero3", "--batch", "4"},
                              {"--seq", "64", "--steps", "5", "--activation-budget", "50%"}));
  for (const json& each : report.at("runs")) {
    const std::int64_t predicted = each.at("activation_bytes").at("predicted"),
                       measured = each.at("activation_bytes").at("measured");
    EXPECT_LE(measured, predicted) << each.at("plan");
    EXPECT_LE(static_cast<double>(predicted), 1.005 * static_cast<double>(measured)) << each.at("plan");
    const json& use = each.at("recomputation");
    EXPECT_EQ(use.at("budget_bytes"), predicted);
    EXPECT_NEAR(use.at("unlimited_bytes").get<double>(), 2 * static_cast<double>(predicted),
                .01 * 2 * static_cast<double>(predicted));
    EXPECT_LE(use.at("planned_bytes"), predicted);
    EXPECT_GT(use.at("planned_bytes"), 0);
    EXPECT_GT(use.at("operators_again"), 0);
    EXPECT_EQ(each.at("losses"), report.at("runs").at(0).at("losses"));
  }
}

TEST(TrainCommand, NamesWhatIsWrongInAPlanFile) {
  const Folder folder;
  std::ofstream(folder.path("bad.json")) << R"({"plan": "zero1", "speed": 9})";
  expect_refused(folder, {"train", "--plan", folder.path("bad.json")}, "bad.json: \"speed\" is not known");
}

struct Setting {
  const char* name;
  std::int64_t hidden, layers, vocab;
  Words options;
};

const Setting kSettings[] = {{"Narrow", 64, 6, 256, {"--seq", "96"}},
                             {"NarrowAccumulated", 64, 6, 256, {"--seq", "48", "--accumulate", "4"}},
                             {"NarrowInBf16", 64, 6, 256, {"--seq", "96", "--precision", "bf16"}},
                             {"WideInBf16", 256, 2, 1000, {"--seq", "48", "--precision", "bf16", "--accumulate", "4"}},
                             {"Wide", 256, 2, 1000, {"--seq", "48"}},
                             {"WideAndLong", 256, 2, 1000, {"--seq", "96", "--accumulate", "4"}},
                             {"LargeLayers", 320, 3, 301, {"--seq", "96", "--accumulate", "2"}},
                             {"LargeLayersInBf16", 320, 3, 301, {"--seq", "96", "--precision", "bf16"}}};

class Peaks : public testing::TestWithParam<Setting> {};

// At most 3 % above what is measured, and never below, under every plan.
TEST_P(Peaks, ArePredicted) {
  const Folder folder;
  const Setting& setting = GetParam();
  std::ofstream(folder.path("config.json")) << json{{"hidden_size", setting.hidden},
                                                    {"intermediate_size", 3 * setting.hidden},
                                                    {"num_hidden_layers", setting.layers},
                                                    {"num_attention_heads", 4},
                                                    {"vocab_size", setting.vocab}};
  const Words options{
      "compare", "--model", folder.path("config.json"), "--data", folder.path("text"), "--ranks", "2", "--batch", "2",
      "--steps", "3"};
  const json report = reported(folder, joined(options, setting.options));
  for (const json& each : report.at("runs")) {
    const std::int64_t predicted = each.at("peak").at("predicted"), measured = each.at("peak").at("measured");
    EXPECT_GE(predicted, measured) << each.at("plan");
    EXPECT_LE(static_cast<double>(predicted), 1.03 * static_cast<double>(measured)) << each.at("plan");
  }
}

INSTANTIATE_TEST_SUITE_P(All, Peaks, testing::ValuesIn(kSettings),
                         [](const auto& each) { return std::string(each.param.name); });

// Of six steps two are skipped at the usual first loss scale, all at a large one.
TEST(CompareInFp16, LeavesOutOfTheWireWhatWasSkipped) {
  const Folder folder;
  const Words options{"compare", "--model", "micro", "--precision", "fp16",    "--ranks",    "2",
                      "--batch", "1",       "--seq", "16",          "--plans", "zero1,zero3"};
  const json some = reported(folder, joined(options, {"--steps", "6"}));
  for (const json& each : some.at("runs")) {
    EXPECT_GT(std::ranges::count(each.at("grad_norms"), nullptr), 0);
    EXPECT_EQ(each.at("wire_bytes_per_step").at("measured"), each.at("wire_bytes_per_step").at("predicted"));
  }
  const Result none = run_apart(folder, joined(options, {"--steps", "3", "--loss-scale", "1073741824"}));
  EXPECT_EQ(none.code, 1) << none.err << none.out;
  EXPECT_TRUE(contains(none.out, "-  no step shows it")) << none.out;
}

TEST(ReportFiles, AreWrittenByCompare) {
  const Folder folder;
  reported(folder, joined({"compare", "--plans", "ddp,zero3"},
                          folder.small({"--ranks", "2", "--steps", "4", "--html", folder.path("page.html"), "--trace",
                                        folder.path("trace.json"), "--tensorboard", folder.path("events")})));
  EXPECT_TRUE(contains(procs::read_all(folder.path("page.html")), "zero compare --plans ddp,zero3"));
  std::set<std::string> names;
  const json trace = folder.document("trace.json");
  for (const json& event : trace.at("traceEvents")) names.insert(event.at("name"));
  for (const char* name : {"forward", "backward", "step", "reduce"}) EXPECT_TRUE(names.contains(name)) << name;
  for (const char* plan : {"ddp", "zero3"})
    EXPECT_FALSE(std::filesystem::is_empty(folder.path(std::string("events/") + plan))) << plan;
}

// What the timeline shows at its highest is what the engine held.
TEST(ReportFiles, ShowTheMemoryWithinAStep) {
  const Folder folder;
  const Words options = folder.small({"--ranks", "2", "--steps", "3"});
  const json run = reported(folder, joined({"train", "--plan", "zero2", "--timeline"}, options)).at("runs").at(0);
  std::int64_t most = 0;
  for (const json& sample : run.at("timeline").at("samples")) {
    std::int64_t sum = 0;
    for (std::size_t i = 1; i < sample.size(); ++i) sum += sample[i].get<std::int64_t>();
    most = std::max(most, sum);
  }
  const auto measured = run.at("peak").at("measured").get<double>();
  EXPECT_NEAR(static_cast<double>(most) / measured, 1, 0.01);
  std::int64_t explained = 0;
  for (const json& part : run.at("process")) explained += part.at("bytes").get<std::int64_t>();
  EXPECT_NEAR(static_cast<double>(explained) / run.at("process_bytes").get<double>(), 1, 0.03);
}

// An evaluation behind the step is no part of it, but what the step left on its way is.
TEST(ReportFiles, EndTheMemoryWithinAStepWhereTheStepEnds) {
  for (const char* plan : {"zero1", "zero3"}) {
    const Folder folder;
    const auto options = folder.small({"--ranks", "2", "--steps", "3", "--eval-every", "3"});
    const json report = reported(folder, joined({"train", "--timeline", "--plan", plan}, options));
    const json timeline = report.at("runs").at(0).at("timeline");
    ASSERT_EQ(timeline.at("phases").size(), 3u);
    const json step = timeline.at("phases").at(2);
    ASSERT_EQ(step.at("phase"), "step");
    double end = step.at("end");
    int publishes = 0;
    for (const json& activity : timeline.at("activities")) {
      const bool publish = activity.at("name") == "publish";
      publishes += publish ? 1 : 0;
      EXPECT_TRUE(publish || activity.at("begin") < step.at("end")) << plan << activity;
      end = std::max(end, activity.at("end").get<double>());
    }
    EXPECT_GT(publishes, 0) << plan;
    EXPECT_LE(timeline.at("samples").back().at(0), end) << plan;
  }
}

TEST(Train, SaysThatTheFiguresOfAGivenProfileAreEstimated) {
  const Folder folder;
  const Result trained = run_apart(
      folder, joined({"train", "--profile", "h100"}, folder.small({"--steps", "1", "--json", folder.path("out")})));
  ASSERT_EQ(trained.code, 0) << trained.err;
  EXPECT_TRUE(contains(trained.out, "by profile h100, estimated from data sheets, not measured")) << trained.out;
  const json run = folder.document("out").at("runs").at(0);
  EXPECT_EQ(run.at("profile"), "h100");
  EXPECT_EQ(run.at("profile_estimated"), true);
}

TEST(BenchProfile, IsWhatSecondsArePredictedBy) {
  const Folder folder;
  const std::string file = folder.path("profile.json");
  const Result measured =
      run_apart(folder, {"bench", "profile", "--ranks", "2", "--precisions", "fp32", "--out", file});
  ASSERT_EQ(measured.code, 0) << measured.err;
  EXPECT_EQ(folder.document("profile.json").at("ranks"), 2);
  for (const char* each : {"bench profile 0/", "copies\n", "fp32, pass 1 of 2, model", "fp32, pass 2 of 2, "})
    EXPECT_TRUE(contains(measured.err, each)) << measured.err;
  EXPECT_FALSE(contains(measured.err, "\r")) << "a bar on what is no terminal";
  const Words two = folder.small({"--ranks", "2", "--steps", "2"});
  const json trained = reported(folder, joined({"train", "--profile", file}, two));
  EXPECT_GT(trained.at("runs").at(0).at("predicted_step_seconds").get<double>(), 0);
  const json answer = planned(folder, {"--model", "micro", "--ranks", "2", "--precision", "fp32", "--profile", file});
  for (const json& plan : answer.at("plans")) EXPECT_GT(plan.at("step_seconds").get<double>(), 0);
  expect_refused(
      folder,
      joined({"train", "--profile", file, "--precision", "bf16"}, folder.small({"--ranks", "2", "--steps", "1"})),
      "does not say how fast bf16");
}

}  // namespace plan_test
