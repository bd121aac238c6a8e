#include "planner/deepspeed.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "planner/deepspeed_keys.h"
#include "zero/error.h"

namespace planner::planner_deepspeed_test {

DeepSpeed read(const char* text, int ranks = 4) {
  return deepspeed_from_json(text, "ds.json", ranks);
}

std::string error_of(const char* text, int ranks = 4) {
  try {
    read(text, ranks);
    return {};
  } catch (const zero::ConfigError& error) {
    return error.what();
  }
}

bool mentions(const std::vector<std::string>& sentences, std::string_view words) {
  return std::ranges::any_of(sentences, [&](const auto& each) { return each.find(words) != std::string::npos; });
}

void expect_in(const std::string& text, std::initializer_list<const char*> words) {
  for (const char* each : words) EXPECT_NE(text.find(each), std::string::npos) << each << " in: " << text;
}

TEST(DeepSpeedConfig, StagesAreThePlans) {
  EXPECT_EQ(read(R"({"zero_optimization": {"stage": 0}})").plan, "ddp");
  EXPECT_EQ(read(R"({"zero_optimization": {"stage": 1}})").plan, "zero1");
  EXPECT_EQ(read(R"({"zero_optimization": {"stage": 2}})").plan, "zero2");
  EXPECT_EQ(read(R"({"zero_optimization": {"stage": 3}})").plan, "zero3");
  EXPECT_EQ(read("{}").plan, "ddp");
  expect_in(error_of(R"({"zero_optimization": {"stage": 4}})"), {"ds.json", "zero_optimization.stage is 4"});
  expect_in(error_of(R"({"zero_optimization": {"stage": "three"}})"), {"zero_optimization.stage"});
}

TEST(DeepSpeedConfig, PrecisionIsWhatIsEnabled) {
  EXPECT_EQ(read("{}").settings.text("precision"), "fp32");
  EXPECT_EQ(read(R"({"bf16": {"enabled": true}})").settings.text("precision"), "bf16");
  EXPECT_EQ(read(R"({"bfloat16": {"enabled": true}, "fp16": {"enabled": false}})").settings.text("precision"), "bf16");
  EXPECT_EQ(read(R"({"fp16": {"enabled": true, "loss_scale": 0}})").settings.text("precision"), "fp16");
  expect_in(error_of(R"({"fp16": {"enabled": true}, "bf16": {"enabled": true}})"), {"fp16.enabled", "bf16.enabled"});
  expect_in(error_of(R"({"bf16": {"enabled": 1}})"), {"bf16.enabled is 1, not true or false"});
  expect_in(error_of(R"({"bf16": true, "optimizer": "AdamW"})"),
            {"bf16 is true, not an object", "optimizer is \"AdamW\", not an object"});
}

TEST(DeepSpeedConfig, BatchSizesCompleteEachOther) {
  const DeepSpeed all = read(R"({"train_batch_size": 64, "train_micro_batch_size_per_gpu": 8,
                                 "gradient_accumulation_steps": 2})");
  EXPECT_EQ(all.batch, 8);
  EXPECT_EQ(all.settings.text("accumulate"), "2");
  const DeepSpeed no_steps = read(R"({"train_batch_size": 64, "train_micro_batch_size_per_gpu": 4})");
  EXPECT_EQ(no_steps.settings.text("accumulate"), "4");
  const DeepSpeed no_micro = read(R"({"train_batch_size": 64, "gradient_accumulation_steps": 2})");
  EXPECT_EQ(no_micro.batch, 8);
  const DeepSpeed total = read(R"({"train_batch_size": 64})");
  EXPECT_EQ(total.batch, 16);
  EXPECT_EQ(total.settings.text("accumulate"), "1");
  EXPECT_FALSE(read("{}").batch);
  EXPECT_FALSE(read(R"({"train_micro_batch_size_per_gpu": 4})").settings.says("accumulate"));
}

TEST(DeepSpeedConfig, ContradictoryBatchSizesAreErrors) {
  expect_in(error_of(R"({"train_batch_size": 64, "train_micro_batch_size_per_gpu": 8,
                         "gradient_accumulation_steps": 4})"),
            {"train_batch_size 64 contradicts", "train_micro_batch_size_per_gpu 8", "gradient_accumulation_steps 4",
             "4 ranks = 128"});
  expect_in(error_of(R"({"train_batch_size": 66, "train_micro_batch_size_per_gpu": 8})"),
            {"train_batch_size 66 does not divide by 32", "train_micro_batch_size_per_gpu"});
  expect_in(error_of(R"({"train_batch_size": 0})"), {"train_batch_size is 0"});
}

TEST(DeepSpeedConfig, BatchSizesThatCannotBeCountedAreErrors) {
  const char* const large = R"({"train_batch_size": 64, "train_micro_batch_size_per_gpu": 1048576,
                                "gradient_accumulation_steps": 1048576})";
  expect_in(error_of(large, 1 << 30), {"ds.json", "train_micro_batch_size_per_gpu 1048576",
                                       "gradient_accumulation_steps 1048576", "1073741824 ranks", "can be counted"});
  expect_in(error_of(large, 4), {"train_batch_size 64 contradicts", "= 4398046511104"});
  for (const char* key : {"train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"})
    for (const char* value : {"9223372036854775808", "18446744073709551617", "1048577"})
      expect_in(error_of(("{\"" + std::string(key) + "\": " + value + "}").c_str()),
                {"ds.json", key, "not a positive integer of at most 1048576"});
}

TEST(DeepSpeedConfig, AutoIsNamedAndLeftOpen) {
  const DeepSpeed found = read(R"({"train_micro_batch_size_per_gpu": "auto", "bf16": {"enabled": "auto"},
                                   "zero_optimization": {"stage": "auto"}})");
  EXPECT_EQ(found.automatic.size(), 3);
  EXPECT_TRUE(mentions(found.automatic, "train_micro_batch_size_per_gpu"));
  EXPECT_TRUE(mentions(found.automatic, "bf16.enabled"));
  EXPECT_FALSE(found.batch);
  EXPECT_FALSE(found.settings.says("precision"));
  EXPECT_FALSE(found.plan);
}

TEST(DeepSpeedConfig, AutoThatFollowsFromTheRestIsTaken) {
  const DeepSpeed found = read(R"({"train_batch_size": 64, "train_micro_batch_size_per_gpu": 4,
                                   "gradient_accumulation_steps": "auto"})");
  EXPECT_EQ(found.settings.text("accumulate"), "4");
  EXPECT_TRUE(found.automatic.empty());
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

TEST(DeepSpeedConfig, OptimizersHaveOurNames) {
  EXPECT_EQ(read(R"({"optimizer": {"type": "AdamW", "params": {"lr": 3e-4}}})").optimizer, "adamw");
  EXPECT_EQ(read(R"({"optimizer": {"type": "AdamW", "params": {"lr": 3e-4}}})").lr, 3e-4);
  EXPECT_EQ(read(R"({"optimizer": {"type": "Adam"}})").optimizer, "adamw");
  EXPECT_EQ(read(R"({"optimizer": {"type": "Adam", "params": {"adam_w_mode": false}}})").optimizer, "adam");
  EXPECT_EQ(read(R"({"optimizer": {"type": "Lion"}})").optimizer, "lion");
  EXPECT_EQ(read(R"({"optimizer": {"type": "SGD"}})").optimizer, "sgd");
  EXPECT_EQ(read(R"({"optimizer": {"type": "SGD", "params": {"momentum": 0.9}}})").optimizer, "momentum");
  expect_in(error_of(R"({"optimizer": {"type": "OneBitAdam"}})"), {"optimizer.type", "onebitadam", "not supported"});
}

TEST(DeepSpeedConfig, HarmlessKeysAreNamedWithWhatHappensInstead) {
  const DeepSpeed found = read(R"({"zero_optimization": {"stage": 3, "overlap_comm": true, "reduce_bucket_size": 5e8,
      "stage3_prefetch_bucket_size": "auto"}, "wall_clock_breakdown": true, "optimizer": {"type": "AdamW",
      "params": {"betas": [0.9, 0.95]}}, "scheduler": {"type": "WarmupLR"}})");
  EXPECT_EQ(found.not_needed.size(), 6);
  EXPECT_TRUE(mentions(found.not_needed, "zero_optimization.overlap_comm true: "));
  EXPECT_TRUE(mentions(found.not_needed, "optimizer.params.betas [0.9,0.95]: "));
}

TEST(DeepSpeedConfig, EverythingUnsupportedIsNamedAtOnce) {
  expect_in(error_of(R"({"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu",
      "super_offload": true}, "offload_param": {"device": "tape", "nvme_path": "/x"}, "zero_hpz_partition_size": 8,
      "zero_quantized_weights": true, "zero_quantized_gradients": true, "mics_shard_size": 4},
      "activation_checkpointing": {"partition_activations": true}, "zero_optimisation": {"stage": 3}})"),
            {"offload_optimizer.super_offload true", "offload_param.device is \"tape\", not \"cpu\", \"nvme\" or",
             "zero_hpz_partition_size 8", "zero_quantized_weights true", "zero_quantized_gradients true",
             "mics_shard_size 4", "activation_checkpointing.partition_activations",
             "zero_optimisation.stage: this key is not known; did you mean 'zero_optimization.stage'?"});
}

TEST(DeepSpeedConfig, WhatIsSwitchedOffIsNoComplaint) {
  const DeepSpeed found = read(R"({"fp16": {"enabled": false, "loss_scale": 0}, "amp": {"enabled": false},
      "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "none", "pin_memory": true},
      "offload_param": null, "cpu_offload": false, "zero_hpz_partition_size": 1, "zero_quantized_weights": false,
      "mics_shard_size": -1, "zeropp_loco_param": null}, "tensorboard": {"enabled": false, "job_name": "x"},
      "elasticity": {"enabled": false}, "activation_checkpointing": {}, "sparse_gradients": false})");
  EXPECT_EQ(found.plan, "zero2");
  EXPECT_TRUE(found.not_needed.empty()) << found.not_needed.front();
}

TEST(DeepSpeedConfig, StatesAreOnTheTiersThatItSays) {
  const auto offload = [](const std::string& keys) {
    const std::string text = "{\"zero_optimization\": {" + keys + "}}";
    return read(text.c_str()).settings.text("offload");
  };
  EXPECT_EQ(offload(R"("stage": 2, "offload_optimizer": {"device": "cpu", "pin_memory": true})"),
            "optimizer=host,gradient=host");
  EXPECT_EQ(offload(R"("stage": 3, "offload_optimizer": {"device": "cpu", "ratio": 0.75})"),
            "optimizer=host:0.75,gradient=host");
  EXPECT_EQ(offload(R"("stage": 3, "offload_optimizer": {"device": "nvme", "nvme_path": "/a"},
                       "offload_param": {"device": "cpu"})"),
            "optimizer=disk,gradient=disk,parameter=host");
  EXPECT_EQ(offload(R"("stage": 2, "cpu_offload": true)"), "optimizer=host,gradient=host");
  EXPECT_EQ(offload(R"("stage": 3, "cpu_offload_params": true)"), "parameter=host");
  EXPECT_EQ(offload(R"("stage": 3, "offload_param": {"device": "none"}, "cpu_offload": false)"), "");
  for (const char* each : {"optimizer=host,gradient=host", "optimizer=host:0.75,gradient=host",
                           "optimizer=disk,gradient=disk,parameter=host", "parameter=host"})
    EXPECT_TRUE(offloaded(zero::Plan::zero3(), each).faults(2).empty()) << each;
  const DeepSpeed found = read(R"({"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "nvme",
      "nvme_path": "/a", "buffer_count": 4}}, "aio": {"block_size": 1048576}})");
  EXPECT_EQ(found.not_needed.size(), 3);
  EXPECT_TRUE(mentions(found.not_needed, "zero_optimization.offload_optimizer.nvme_path \"/a\": "));
  EXPECT_TRUE(mentions(found.taken, "zero_optimization.offload_optimizer: --offload optimizer=disk,gradient=disk"));
}

TEST(DeepSpeedConfig, StatesThatCannotBeElsewhereAreRefused) {
  expect_in(error_of(R"({"zero_optimization": {"stage": 2, "offload_param": {"device": "cpu"}}})"),
            {"offload_param needs zero_optimization.stage 3"});
  expect_in(error_of(R"({"zero_optimization": {"stage": 0, "offload_optimizer": {"device": "cpu"}}})"),
            {"offload_optimizer needs zero_optimization.stage 1, 2 or 3"});
  expect_in(error_of(R"({"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu", "ratio": 1.5}}})"),
            {"offload_optimizer.ratio must be above 0, and at most 1"});
  expect_in(error_of(R"({"zero_optimization": {"stage": 3, "cpu_offload": 1}})"),
            {"cpu_offload is 1, not true or false"});
}

TEST(DeepSpeedConfig, GradientsTravelAsItSays) {
  EXPECT_EQ(read(R"({"communication_data_type": "fp32"})").settings.text("reduce_in"), "fp32");
  EXPECT_EQ(read(R"({"communication_data_type": "bfp16"})").settings.text("reduce_in"), "bf16");
  expect_in(error_of(R"({"communication_data_type": "int8"})"), {"communication_data_type"});
}

TEST(DeepSpeedConfig, MicroBatchesAreAddedInFp32) {
  const char* const several = R"({"gradient_accumulation_steps": 2, "data_types": {"grad_accum_dtype": "bf16"}})";
  expect_in(error_of(several), {"data_types.grad_accum_dtype"});
  EXPECT_EQ(error_of(R"({"gradient_accumulation_steps": 2, "data_types": {"grad_accum_dtype": "fp32"}})"), "");
  EXPECT_EQ(error_of(R"({"data_types": {"grad_accum_dtype": "bf16"}})"), "");
}

TEST(DeepSpeedConfig, TheExampleIsRead) {
  const DeepSpeed found = read_deepspeed(ZERO_SOURCE_DIR "/examples/ds_config.json", 8);
  EXPECT_EQ(found.plan, "zero3");
  EXPECT_EQ(found.batch, 4);
  EXPECT_EQ(found.settings.text("accumulate"), "8");
  EXPECT_EQ(found.clip, 1.0);
}

TEST(DeepSpeedConfig, TextThatIsNoObjectIsRefused) {
  expect_in(error_of("[]"), {"ds.json", "not a JSON object"});
  expect_in(error_of("{"), {"ds.json", "not a JSON object"});
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
