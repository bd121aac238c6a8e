#include "planner/recomputation.h"

#include <algorithm>
#include <utility>

#include "partition/activation_plan.h"
#include "planner/activation_trace.h"
#include "planner/activations.h"
#include "planner/seconds.h"
#include "zero/error.h"

namespace planner {
namespace {

MicroBatch of_layers(MicroBatch work, std::int64_t layers) {
  work.config.num_hidden_layers = layers;
  work.budget = {};
  return work;
}

// What a model of so many layers takes, of what two with fewer take: alike layers add alike.
double of_deeper(std::int64_t layers, std::pair<std::int64_t, double> few, std::pair<std::int64_t, double> more) {
  const double each = (more.second - few.second) / static_cast<double>(more.first - few.first);
  return more.second + each * static_cast<double>(layers - more.first);
}

// Nanoseconds of a model of `layers` of the micro-batch's, of which each gives up as much as of all of them.
std::optional<double> again_in(const MicroBatch& work, const Pace& pace, std::int64_t layers, std::int64_t least) {
  const std::int64_t all_layers = work.config.num_hidden_layers;
  const std::int64_t all = activations(of_layers(work, all_layers)).bytes;
  const double gives_up = static_cast<double>(all - in_bytes(work.budget, all)) / static_cast<double>(all_layers);
  const zero::OperatorTrace trace = activation_trace(of_layers(work, layers), pace).operators;
  const std::int64_t budget =
      zero::unlimited_peak(trace) - static_cast<std::int64_t>(gives_up * static_cast<double>(layers));
  const auto plan = zero::activation_plan(trace, std::max(budget, least), 0, work.way);
  return plan ? std::optional(static_cast<double>(plan->nanoseconds)) : std::nullopt;
}

std::int64_t least_of(const MicroBatch& work, const Pace& pace, std::int64_t layers) {
  return zero::least_budget(activation_trace(of_layers(work, layers), pace).operators, work.way);
}

// Within the least of few layers where what is left for them is not enough: all of them together have more room.
std::optional<double> again_in_deep(const MicroBatch& work, const Pace& pace) {
  const std::int64_t layers = work.config.num_hidden_layers, half = kReplayedLayers / 2;
  auto few = again_in(work, pace, half, 0), more = again_in(work, pace, kReplayedLayers, 0);
  if (!few || !more) {
    const std::int64_t all = activations(of_layers(work, layers)).bytes;
    if (in_bytes(work.budget, all) < least_activation_budget(work, pace)) return {};
    if (!few) few = again_in(work, pace, half, least_of(work, pace, half));
    if (!more) more = again_in(work, pace, kReplayedLayers, least_of(work, pace, kReplayedLayers));
  }
  if (!few || !more) return {};
  return of_deeper(layers, {half, *few}, {kReplayedLayers, *more});
}

std::string refusal(const MicroBatch& work, const Pace& pace) {
  const std::int64_t all = activations(of_layers(work, work.config.num_hidden_layers)).bytes;
  const ActivationTrace trace =
      activation_trace(of_layers(work, std::min<std::int64_t>(work.config.num_hidden_layers, kReplayedLayers)), pace);
  const zero::LargestNeed largest = zero::largest_need(trace.operators);
  const auto op = static_cast<std::size_t>(largest.op);
  return "an activation budget of " + std::to_string(in_bytes(work.budget, all)) +
         " bytes cannot be met: the least for this micro-batch is about " +
         std::to_string(least_activation_budget(work, pace)) + ", of " + std::to_string(all) +
         " without a budget; most alone needs the " + trace.names[op] +
         (trace.operators.operators[op].backward ? ", in backward, " : ", in forward, ") +
         std::to_string(largest.bytes);
}

}  // namespace

bool foresees_budget(const MicroBatch& work) {
  return work.way.exact;
}

zero::StoredWay stored_way(const zero::Plan& plan, const Profile& profile) {
  const auto each = [](double bandwidth) { return 1e9 / bandwidth; };
  const zero::Row& row = plan[zero::State::activation];
  if (row.wire != zero::Wire::native) return {.nanoseconds_a_byte = 0, .exact = false};
  if (row.tier == zero::Tier::device) return {};
  if (row.tier == zero::Tier::host)
    return {.nanoseconds_a_byte =
                profile.host_link_bandwidth > 0 ? 2 * each(profile.host_link_bandwidth) : zero::kUsualOfLink};
  const bool known = profile.disk_read_bandwidth > 0 && profile.disk_write_bandwidth > 0;
  return {.nanoseconds_a_byte =
              known ? each(profile.disk_read_bandwidth) + each(profile.disk_write_bandwidth) : zero::kUsualOfDisk};
}

std::optional<Recomputation> recomputation(const MicroBatch& work, const Pace& pace) {
  if (!foresees_budget(work)) return {};
  const std::int64_t layers = work.config.num_hidden_layers;
  const auto again = layers > kReplayedLayers ? again_in_deep(work, pace) : again_in(work, pace, layers, 0);
  if (!again) return {};
  const double all = labour_of(work).seconds(pace);
  return Recomputation{.seconds = *again * 1e-9, .share = all > 0 ? *again * 1e-9 / all : 0};
}

std::int64_t least_activation_budget(const MicroBatch& work, const Pace& pace) {
  const std::int64_t layers = work.config.num_hidden_layers, few = kReplayedLayers / 4, more = kReplayedLayers / 2;
  if (layers <= kReplayedLayers) return least_of(work, pace, layers);
  return static_cast<std::int64_t>(of_deeper(layers, {few, static_cast<double>(least_of(work, pace, few))},
                                             {more, static_cast<double>(least_of(work, pace, more))}));
}

Recomputation price_of_budget(const MicroBatch& work, const Pace& pace) {
  if (!work.budget) return {};
  if (!foresees_budget(work))
    throw zero::ConfigError("an activation budget beside activations in 8 bits cannot be foreseen",
                            "plan with one of them; to train with both is possible");
  if (const auto found = recomputation(work, pace)) return *found;
  throw zero::ConfigError(refusal(work, pace), "give it so much, or take smaller micro-batches");
}

}  // namespace planner
