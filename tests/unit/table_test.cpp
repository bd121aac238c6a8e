// Tables are within 100 columns, whatever is in them.
#include "cli/report/table.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <set>
#include <sstream>

#include "cli/commands/plan_command.h"
#include "cli/report/report.h"
#include "planner/answer_json.h"

namespace cli::table_test {

using zero::Plan;
using zero::State;
using zero::Tier;

std::string text_of(const Table& table) {
  std::ostringstream out;
  table.print(out);
  return out.str();
}

// Characters of the longest line that is no sentence, nor one of several.
std::size_t widest_row(const std::string& text) {
  std::istringstream lines(text);
  std::size_t most = 0;
  for (std::string line; std::getline(lines, line);)
    if (!line.ends_with('.') && !line.ends_with(':'))
      most = std::max(most,
                      static_cast<std::size_t>(std::ranges::count_if(line, [](char c) { return (c & 0xc0) != 0x80; })));
  return most;
}

// Every preset with every state on every tier, a share of the optimizer too.
std::vector<Plan> plans_on_tiers() {
  constexpr std::array tiers{Tier::device, Tier::host, Tier::disk};
  std::vector<Plan> plans;
  for (const std::string_view preset : Plan::presets())
    for (const Tier parameter : tiers)
      for (const Tier gradient : tiers)
        for (const Tier optimizer : tiers)
          for (const double share : {1.0, 1.0 / 3}) {
            const Plan plan = Plan::named(preset)
                                  .bf16()
                                  .offload(State::parameter, parameter)
                                  .offload(State::gradient, gradient)
                                  .offload(State::optimizer, optimizer, share);
            for (const bool delayed : {false, true}) plans.push_back(plan.delay_update(delayed));
          }
  return plans;
}

TEST(Table, IsAsWideAsItsCells) {
  Table table(1);
  table.add({"plan", "wire each step", ""});
  table.add({"zero3, all on disk", "1", "differs"});
  EXPECT_EQ(text_of(table),
            "plan                wire each step\n"
            "zero3, all on disk               1  differs\n");
}

TEST(Table, BreaksHeadsFirst) {
  Table table(1);
  table.add({"plan", std::string(40, 'a') + " " + std::string(39, 'b'), "bytes, predicted"});
  table.add({"zero3, all on disk", "1", "2"});
  const std::string gap(40, ' ');
  EXPECT_EQ(text_of(table), gap.substr(0, 20) + std::string(40, 'a') + "\n" + "plan" + gap.substr(0, 17) +
                                std::string(39, 'b') + "  bytes, predicted\n" + "zero3, all on disk" + gap + " 1" +
                                gap.substr(0, 17) + "2\n");
}

TEST(Table, GivesEachTierOfALongLabelALine) {
  Table table(1);
  table.add({"plan", "bytes"});
  table.add({"zero3, gradient and 0.5 of optimizer on host, parameter on disk", std::string(60, '1')});
  EXPECT_EQ(text_of(table), "plan" + std::string(87, ' ') + "bytes\n" + "zero3," + std::string(30, ' ') +
                                std::string(60, '1') +
                                "\n"
                                "  gradient and 0.5 of optimizer on\n"
                                "  host, parameter on disk\n");
}

constexpr std::int64_t kMany = 999'999'999'999;

RunResult run_of(const Plan& plan) {
  RunResult run;
  run.plan = plan.label();
  run.optimizer_name = "adamw-8bit";
  run.precision = "bf16-kahan";
  run.losses = {-1.2345678901234567e-105};
  run.theory.state = "4.25 Ψ + 4.25 Ψ / S + 12.3 Ψ / N";
  const Bytes other{kMany, kMany - 1};
  run.parameter = run.gradient = run.optimizer = run.buffers = other;
  run.activation = run.peak = {kMany, kUnmeasured};
  run.wire = {.predicted = kMany,
              .measured = kMany - 1,
              .uneven = true,
              .within_host = other,
              .across_hosts = other,
              .in_place = other,
              .codes = {{"gradient", "int4-hadamard", other, other}}};
  for (const State state : {State::parameter, State::gradient, State::optimizer})
    if (const Tier tier = plan[state].tier; tier != Tier::device)
      run.tiers.push_back({std::string(name(tier)), std::string(name(state)), other, other, other, true});
  run.peak_bytes = kMany;
  run.predicted_seconds = run.step_seconds = 12345.678;
  run.tokens_per_second = 123456789;
  run.update_seconds = 1e-9;
  return run;
}

TEST(Tables, OfReportsAreNarrow) {
  Report report;
  for (const Plan& plan : plans_on_tiers()) {
    report.runs = {run_of(plan), run_of(plan)};
    for (const char* device : {"cpu", "cuda"}) {
      report.setting["device"] = device;
      std::ostringstream out;
      print_report(out, report);
      ASSERT_LE(widest_row(out.str()), Table::kWidest) << out.str();
    }
  }
}

TEST(Tables, OfOptimizersAreNarrow) {
  Report report;
  report.runs = {run_of(Plan::zero3()), run_of(Plan::zero3())};
  std::ostringstream out;
  print_optimizers(out, report, 1e9);
  const std::string text = out.str();
  EXPECT_LE(widest_row(text.substr(text.find("\n\n"))), Table::kWidest) << text;
}

TEST(Tables, OfPlansAreNarrow) {
  planner::Request request{.shape = planner::shape_of(models::llama_preset("70b")),
                           .ranks = 8192,
                           .hosts = 1024,
                           .shard = 8,
                           .device_memory = std::int64_t{80} << 30,
                           .batch = 100'000,
                           .seq = 4096,
                           .profile = planner::profile_named("h100")};
  std::set<std::string> labels;
  for (const Plan& plan : plans_on_tiers())
    if (plan.faults(request.mesh()).empty() && labels.insert(plan.label()).second) request.plans.push_back(plan);
  EXPECT_GT(labels.size(), 50U);
  planner::Answer answer{.request = request, .model = "70b", .optimizer = "adamw-8bit"};
  answer.costs = planner::price(request);
  std::ostringstream out;
  print_plans(out, answer);
  EXPECT_LE(widest_row(out.str()), Table::kWidest) << out.str();
}

}  // namespace cli::table_test
