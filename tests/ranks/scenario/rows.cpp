// What there is to choose from.
#include "ranks/scenario/scenario.h"
#include "ranks/scenario/settings.h"

namespace zero::test::scenario {

template <>
const std::vector<Field>& fields<Setting>() {
  static const std::vector<Field> all = {
      {"ranks", {"2", "1", "3", "4"}, 40},
      {"precision", {"fp32", "bf16", "fp16", "bf16-kahan", "bf16-sr", "bf16-pure", "fp8"}, 45},
      {"micro-batches of a step", {"1", "2", "3", "4"}, 55},
      {"reproducible", {"no", "yes"}, 75},
      {"delayed update", {"no", "yes"}, 80},
      {"optimizer", names_of_optimizers(), 15},
      {"groups",
       {"none", "no decay", "slower head", "Sgd for vectors", "LAMB for matrices", "8-bit AdamW for matrices"},
       55},
      {"clip", {"none", "0.5", "0.01"}, 60},
      {"schedule", {"none", "warm-up and decay"}, 75},
      {"loss scale", {"the plan's", "dynamic from 1024", "fixed at 8", "dynamic from 2^18"}, 65},
      {"full precision", {"none", "norms", "vectors"}, 75},
      {"reduce in", {"own", "bf16", "fp32", "fp16"}, 80},
      {"units", {"in containers", "by size", "the model", "blocks and head"}, 55},
      {"group norms", {"no", "yes"}, 75},
      {"scales of fp8", {"current", "delayed"}, 50},
      {"checks of the disk", {"no", "yes"}, 50},
      {"width", {"8", "16", "32", "40"}, 20},
  };
  return all;
}

template <>
const std::vector<Field>& fields<PlanChoice>() {
  static const std::vector<Field> all = {
      {"plan", {"ddp", "zero1", "zero2", "zero3", "hybrid", "hybrid-zero2"}, 5},
      {"ranks of a shard group", {"all", "1", "2"}, 60},
      {"optimizer", {"in memory", "on disk", "half on disk", "a tenth on disk"}, 55},
      {"gradient", {"in memory", "on disk"}, 75},
      {"parameter", {"in memory", "on disk"}, 75},
      {"parameters travel", {"as they are", "in fp8"}, 92},
      {"kept copy", {"none", "in the shard group", "whole"}, 75},
      {"resident budget", {"the plan's", "1 byte", "6000 bytes"}, 70},
      {"units on their way", {"the plan's", "two"}, 60},
  };
  return all;
}

const std::vector<ActRow>& act_rows() {
  static const std::vector<ActRow> all = {
      {.name = "backward",
       .which = {"the main loss", "the auxiliary loss", "the sum of both", "both in turn", "both of one graph"},
       .how = {"engine.backward", "loss.backward", "around_backward"},
       .some = "no data",
       .infinite = "infinite loss",
       .weight = 10},
      {.name = "step", .how = {"engine", "optimizer"}, .weight = 3},
      {.name = "zero_grad",
       .how = {"of the module", "of the optimizer", "to zeros", "child by child"},
       .part = true,
       .weight = 14},
      {.name = "discard", .weight = 3},
      {.name = "forward that is dropped", .how = {"of the number told", "unasked"}, .some = "none", .weight = 6},
      {.name = "evaluate", .some = "none", .weight = 8},
      {.name = "freeze", .part = true, .weight = 6},
      {.name = "thaw", .part = true, .weight = 6},
      {.name = "read", .how = {"in a scope", "by operators", "main values"}, .part = true, .weight = 8},
      {.name = "write",
       .how = {"on all ranks", "from one rank", "and throw", "by set_data"},
       .part = true,
       .weight = 8},
      {.name = "gradient", .part = true, .weight = 6},
      {.name = "clamp slices", .weight = 4},
      {.name = "set_lr", .which = {"half", "double", "zero", "0.003"}, .how = {"engine", "groups"}, .weight = 6},
      {.name = "request", .some = "not", .weight = 2},
      {.name = "save", .how = {"and wait", "in the background"}, .weight = 6},
      {.name = "load", .weight = 6},
      {.name = "move to another engine",
       .which = {"plan 1", "plan 2", "plan 3"},
       .how = {"as built", "frozen as now"},
       .weight = 6},
      {.name = "release, and another engine", .which = {"plan 1", "plan 2", "plan 3"}, .weight = 6},
  };
  return all;
}

}  // namespace zero::test::scenario
