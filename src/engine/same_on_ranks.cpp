#include "engine/same_on_ranks.h"

#include <algorithm>
#include <cstring>

#include "base/random.h"
#include "base/text.h"
#include "partition/plan_settings.h"
#include "partition/routes.h"
#include "units/unit.h"
#include "zero/agreement.h"
#include "zero/error.h"

namespace zero {
namespace {

constexpr std::size_t kLongestName = 80;

// Empty for row-major order.
std::string order_text(const at::Tensor& parameter) {
  const std::vector<std::int64_t> order = memory_order(parameter);
  return std::ranges::is_sorted(order) ? "" : ", dimensions in the memory order " + listed(order);
}

std::string text(const ParameterSpec& parameter, const ParameterInfo& info, const at::Tensor& tensor,
                 const std::optional<TensorCut>& cut) {
  return "parameter '" + parameter.name + "' of shape " + listed(info.shape) + " " +
         std::string(name(parameter.dtype)) + order_text(tensor) + (parameter.trainable ? "" : ", frozen") +
         ", in unit '" + parameter.unit + "'" + (cut ? ", cut by " + name(*cut) : "");
}

std::string text(const LossScale& scale) {
  if (!scale.dynamic) return "loss scale " + shortest(scale.initial);
  return "loss scale from " + shortest(scale.initial) + " down to " + shortest(scale.floor) + ", times " +
         shortest(scale.growth) + " after " + std::to_string(scale.window) + " steps, times " +
         shortest(scale.backoff) + " after " + std::to_string(scale.hysteresis) + " overflows";
}

// A program's own schedule may end with its training.
std::string factor_at(const Schedule& schedule, std::int64_t step) try {
  return "a factor of " + shortest(schedule(step));
} catch (...) {
  return "no factor";
}

// Early steps one by one, then ever farther apart.
void add_schedule(const Schedule& schedule, std::vector<std::string>& lines) {
  constexpr std::int64_t each = 16, last = std::int64_t{1} << 24;
  lines.emplace_back(schedule ? "a schedule of the learning rate" : "no schedule of the learning rate");
  for (std::int64_t step = 0; schedule && step <= last; step += step < each ? 1 : step / 4)
    lines.push_back(factor_at(schedule, step) + " on the learning rate at step " + std::to_string(step));
}

}  // namespace

std::vector<std::string> description(const Plan& plan, const Inventory& inventory,
                                     const std::vector<ParameterInfo>& infos, const std::vector<ParameterRule>& rules,
                                     const Options& options) {
  const std::vector<ParameterSpec>& parameters = inventory.specs;
  std::vector<std::string> lines{"plan " + plan.label() + ", " + std::string(name(plan.precision()))};
  for (const PlanSetting& each : plan_settings())
    if (each.told) lines.push_back(words_of(each, plan));
  lines.push_back((options.seed ? "seed " + std::to_string(*options.seed) : "no seed of its own") + ", clip " +
                  shortest(options.clip));
  lines.push_back(options.outside == OutsideGradients::add ? "gradients of other backwards are added"
                                                           : "gradients of other backwards are dropped");
  if (options.partition_activations) lines.emplace_back("inputs of checkpoints cut over the tensor axis");
  if (options.sequence_parallel) lines.emplace_back("sequences cut over the tensor axis");
  if (options.tensor_grain != 1) lines.push_back("a tensor grain of " + std::to_string(options.tensor_grain));
  lines.push_back(options.group_norms ? "norms of " + std::to_string(options.groups.size()) + " groups" : "one norm");
  lines.push_back(options.loss_scale ? text(*options.loss_scale) : "no loss scale of its own");
  add_schedule(options.schedule, lines);
  if (plan.float8())
    lines.push_back(std::string(options.float8.scaling == Scaling::delayed ? "delayed" : "current") +
                    " FP8 scaling, history " + std::to_string(options.float8.history));
  for (const State state : {State::parameter, State::gradient, State::optimizer, State::activation})
    lines.push_back(std::string(name(state)) + " " + describe(plan[state]));
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const bool float8 = plan.float8() && options.float8.takes && options.float8.takes(infos[i]);
    lines.push_back(text(parameters[i], infos[i], inventory.parameters[i], inventory.cuts[i]) +
                    (float8 ? ", in FP8" : ""));
    lines.push_back("for parameter '" + parameters[i].name + "' " + describe(rules[i].optimizer) + ", lr scale " +
                    shortest(rules[i].lr_scale));
  }
  for (const MaxNorms::Table& each : inventory.max_norms)
    lines.push_back("for parameter '" + each.name + "' a largest norm of rows of " + shortest(each.max_norm) +
                    ", p = " + shortest(each.norm_type));
  for (const Replicated& each : inventory.replicated)
    lines.push_back("buffer '" + each.name + "' of shape " + listed(each.tensor.sizes()) + " " +
                    c10::toString(each.tensor.scalar_type()));
  return lines;
}

std::string agreement_key(const std::vector<std::string>& lines) {
  std::string all;
  for (const std::string& line : lines) all += line + '\n';
  return "an engine of " + lines.front().substr(0, kLongestName) + ", " + std::to_string(fnv1a(all));
}

void require_agreement(const Communicator& communicator, const std::vector<std::string>& lines) {
  if (const auto found = disagreement(communicator, lines, "no more parameters or buffers"))
    throw CommError("rank " + std::to_string(communicator.rank()) +
                        ": the ranks set up different models or plans: " + found->values,
                    "build the same model under the same plan on every rank");
}

}  // namespace zero
