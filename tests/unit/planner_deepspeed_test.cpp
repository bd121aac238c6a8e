#include "planner/deepspeed.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/text.h"
#include "planner/deepspeed_keys.h"
#include "unit/planner_requests.h"
#include "unit/refused.h"

namespace planner::planner_deepspeed_test {

DeepSpeed read(const std::string& text, int ranks = 4) {
  return deepspeed_from_json(text, "ds.json", ranks);
}

// What it says, a line each.
std::vector<std::string> readings(const DeepSpeed& found) {
  std::vector<std::string> all{std::to_string(found.automatic.size()) + " automatic",
                               std::to_string(found.not_needed.size()) + " not_needed"};
  const auto say = [&](std::string_view key, const std::string& value) {
    all.push_back(std::string(key) + " " + value);
  };
  if (found.plan) say("plan", *found.plan);
  if (found.optimizer) say("optimizer", *found.optimizer);
  if (found.batch) say("batch", std::to_string(*found.batch));
  if (found.shard_ranks) say("shard_ranks", std::to_string(*found.shard_ranks));
  if (found.lr) say("lr", zero::shortest(*found.lr));
  for (const zero::PlanSetting& each : zero::plan_settings())
    if (found.settings.says(each.name)) say(each.name, found.settings.text(each.name));
  for (const std::string& each : found.automatic) say("automatic", each);
  for (const std::string& each : found.not_needed) say("not_needed", each);
  for (const std::string& each : found.taken) say("taken", each);
  return all;
}

// "plan zero3", the beginning of a sentence up to its colon, or "plan not said".
bool is_met(const std::string& expected, const std::vector<std::string>& said) {
  const auto starts = [&](const std::string& words) {
    return std::ranges::any_of(said, [&](const auto& each) { return each.starts_with(words); });
  };
  if (const auto end = expected.find(" not said"); end != expected.npos) return !starts(expected.substr(0, end) + " ");
  return expected.ends_with(':') ? starts(expected) : std::ranges::count(said, expected) == 1;
}

TEST(DeepSpeedConfig, IsRead) {
  for (const golden::Row& row : golden::table("deepspeed_reads")) {
    const DeepSpeed found = read(row.text("config"));
    const std::vector<std::string> said = readings(found);
    for (const std::string& each : row.list("reads"))
      row.expect_part("reads", each, is_met(each, said), zero::joined(said, "\n"));
    EXPECT_TRUE(offloaded(zero::Plan::zero3(), found.settings.text("offload")).faults(2).empty());
  }
}

TEST(DeepSpeedConfig, IsRefusedByName) {
  expect_refused("deepspeed_refused", "ds.json", [](const std::string& text) { read(text); });
}

TEST(DeepSpeedConfig, BatchSizesThatCannotBeCountedAreErrors) {
  const char* const large = R"({"train_batch_size": 64, "train_micro_batch_size_per_gpu": 1048576,
                                "gradient_accumulation_steps": 1048576})";
  expect_in(error_of([&] { read(large, 1 << 30); }),
            {"ds.json", "train_micro_batch_size_per_gpu 1048576", "gradient_accumulation_steps 1048576",
             "1073741824 ranks", "can be counted"});
  for (const char* key : {"train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"})
    for (const char* value : {"9223372036854775808", "18446744073709551617", "1048577"})
      expect_in(error_of([&] { read("{\"" + std::string(key) + "\": " + value + "}"); }),
                {"ds.json", key, "not a positive integer of at most 1048576"});
}

TEST(DeepSpeedConfig, WhatIsKnownFromElsewhereCompletesTheBatch) {
  const auto known = [](const char* text, Known other) { return deepspeed_from_json(text, "ds.json", 4, other); };
  constexpr const char* total = R"({"train_batch_size": 64, "train_micro_batch_size_per_gpu": "auto",
                                    "gradient_accumulation_steps": "auto"})";
  const DeepSpeed by_batch = known(total, {.batch = 2});
  EXPECT_EQ(by_batch.batch, 2);
  EXPECT_EQ(by_batch.settings.text("accumulate"), "8");
  EXPECT_FALSE(mentions(by_batch.taken, "train_micro_batch_size_per_gpu"));
  EXPECT_TRUE(mentions(by_batch.taken, "gradient_accumulation_steps: accumulate 8"));
  EXPECT_EQ(known(total, {.accumulate = 4}).batch, 4);
  EXPECT_EQ(known(R"({"train_micro_batch_size_per_gpu": 8})", {.batch = 2}).batch, 8);
  EXPECT_THROW(known(total, {.batch = 2, .accumulate = 4}), zero::ConfigError);
  EXPECT_THROW(known(total, {.batch = 3}), zero::ConfigError);
}

TEST(DeepSpeedConfig, TheExampleIsRead) {
  const DeepSpeed found = read_deepspeed(ZERO_SOURCE_DIR "/examples/ds_config.json", 8);
  EXPECT_EQ(found.plan, "zero3");
  EXPECT_EQ(found.batch, 4);
  EXPECT_EQ(found.settings.text("accumulate"), "8");
  EXPECT_EQ(found.clip, 1.0);
}

TEST(DeepSpeedKeys, ExactPathsComeBeforePatterns) {
  EXPECT_EQ(rule_of_key("optimizer.params.lr")->fate, Fate::read);
  EXPECT_EQ(rule_of_key("optimizer.params.eps")->fate, Fate::harmless);
  EXPECT_EQ(rule_of_key("zero_optimization.offload_param.device")->fate, Fate::read);
  EXPECT_EQ(rule_of_key("zero_optimization.offload_param.buffer_count")->fate, Fate::harmless);
  EXPECT_EQ(rule_of_key("zero_optimization.unknown"), nullptr);
  EXPECT_TRUE(is_section("zero_optimization"));
  EXPECT_FALSE(is_section("zero_optimization.zenflow"));
  EXPECT_FALSE(is_section("zero_optimi"));
}

}  // namespace planner::planner_deepspeed_test
