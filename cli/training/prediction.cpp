#include "cli/training/prediction.h"

#include <filesystem>
#include <utility>

#include "cli/complain.h"
#include "cli/options/device_option.h"
#include "cli/training/collect.h"
#include "planner/price.h"
#include "planner/processor.h"
#include "planner/seconds.h"

namespace cli {
namespace {

void predict_bytes(const zero::Estimate& estimate, const planner::Activations& activations, RunResult& result) {
  result.parameter.predicted = estimate.state.parameter;
  result.gradient.predicted = estimate.state.gradient;
  result.optimizer.predicted = estimate.state.optimizer;
  result.update_bytes = estimate.update_traffic;
  result.activation.predicted = activations.bytes;
  result.buffers.predicted = estimate.buffers();
  const planner::Peak peak = planner::peak_of(estimate, activations);
  result.peak.predicted = peak.bytes;
  result.moment = peak.moment;
}

void predict_tiers(const zero::Plan& plan, const zero::Estimate& estimate, RunResult& result) {
  const zero::TierTraffic moved = estimate.moved.step();
  for (const zero::Tier tier : {zero::Tier::host, zero::Tier::disk}) {
    for (const zero::State state : {zero::State::parameter, zero::State::gradient, zero::State::optimizer}) {
      const zero::TierTraffic::Entry& entry = moved.on(tier, state);
      if (plan[state].tier != tier && entry.total() == 0) continue;
      TierBytes& of =
          result.tiers.emplace_back(TierBytes{.tier = std::string(name(tier)), .state = std::string(name(state))});
      of.held.predicted = estimate.held.on(tier, owner_of(state)).bytes;
      of.read.predicted = entry.read;
      of.written.predicted = entry.written;
    }
  }
}

// Of the rank that has most: hosts may have different numbers of ranks.
void predict_wire(const zero::Plan& plan, const zero::Traffic& wire, const zero::World& world, WireBytes& result) {
  result.predicted = largest(world, wire.bytes());
  result.within_host.predicted = largest(world, wire.within_host());
  result.across_hosts.predicted = largest(world, wire.across_hosts());
  result.in_place.predicted = wire.in_place();
  for (const zero::State state : {zero::State::parameter, zero::State::gradient}) {
    CodedBytes of{.state = std::string(name(state)), .codec = std::string(name(plan[state].wire))};
    const zero::Traffic::Entry& entry = wire[carrier_of_codes(of.state)];
    if (largest(world, entry.codes) == 0) continue;
    of.within_host.predicted = largest(world, entry.codes - entry.codes_across);
    of.across_hosts.predicted = largest(world, entry.codes_across);
    result.codes.push_back(std::move(of));
  }
}

std::optional<planner::Profile> measured_here(const RunOptions& options, int rank) try {
  const std::string usual = planner::usual_profile_path(device_named(options.device).kind);
  std::error_code error;
  return std::filesystem::exists(usual, error) ? std::optional(planner::profile_named(usual)) : std::nullopt;
} catch (const zero::ConfigError& error) {
  if (rank == 0) complain(std::string("seconds are not predicted: ") + error.what());
  return {};
}

// By the option, or by what was measured on this machine of such a device, where that is of as many ranks and of this
// precision.
std::optional<planner::Profile> profile_for(const RunOptions& options, zero::Precision precision,
                                            const zero::World& world) {
  if (options.profile == kNoProfile) return {};
  if (!options.profile.empty()) return planner::profile_named(options.profile);
  const std::optional<planner::Profile> measured = measured_here(options, world.rank());
  if (!measured || !measured->knows(precision)) return {};
  return measured->ranks == 0 || measured->ranks == world.size() ? measured : std::nullopt;
}

// Bytes that the optimizer keeps of each parameter.
double held_of(const zero::Plan& plan, const zero::Layout& layout, const zero::Estimate& estimate) {
  const int among = planner::divided_among(plan, zero::State::optimizer, layout.mesh());
  return static_cast<double>(estimate.state.optimizer) * among / static_cast<double>(layout.length());
}

planner::MicroBatch micro_batch(const zero::Plan& plan, const RunOptions& options, const Work& work,
                                bool gathers = false) {
  return {models::part_of(work.config, options.tensor),
          options.batch,
          options.seq,
          plan.precision(),
          on_host(options.device) ? planner::product_scratch() : planner::ProductScratch::blocks,
          plan.activation_budget(),
          gathers};
}

}  // namespace

zero::Plan with_budget_in_bytes(const zero::Plan& plan, const RunOptions& options, const Work& work) {
  if (plan.activation_budget().share == 0) return plan;
  return plan.activation_budget({.bytes = planner::activations(micro_batch(plan, options, work)).bytes});
}

zero::Collective carrier_of_codes(const std::string& state) {
  return zero::state_named(state) == zero::State::parameter ? zero::Collective::all_gather
                                                            : zero::Collective::all_to_all;
}

void predict(const zero::Engine& engine, const RunOptions& options, const Work& work, const zero::World& world,
             RunResult& result) {
  const zero::Layout& layout = engine.layout();
  const zero::MeshShape& mesh = layout.mesh();
  const zero::Plan plan = engine.plan().on(mesh);
  const planner::MicroBatch micro = micro_batch(plan, options, work, planner::gathers_parameters(engine.plan(), mesh));
  const zero::Estimate estimate =
      zero::estimate(engine.plan(), layout, engine.rules(), planner::order_of_use(micro.config, layout),
                     engine.memory(), engine.topologies(), {.directories = {options.disk.begin(), options.disk.end()}});
  predict_bytes(estimate, planner::activations(micro), result);
  const planner::TensorWire tensor = planner::tensor_wire(micro, options.tensor).times(plan.accumulate());
  result.tensor_wire.predicted = tensor.bytes;
  predict_tiers(plan, estimate, result);
  predict_wire(plan, estimate.wire, world, result.wire);
  result.snapshot = on_host(options.device) ? estimate.held[zero::Owner::snapshot].peak : 0;
  result.theory = planner::theory_of(plan, layout.numel(), mesh, held_of(plan, layout, estimate));
  if (const auto profile = profile_for(options, plan.precision(), world);
      profile && planner::missing_for_tiers(plan, *profile).empty()) {
    if (micro.budget && !foresees_budget(micro)) return;
    const auto again = micro.budget ? recomputation(micro, profile->pace(micro.precision)) : std::nullopt;
    result.predicted_seconds = step_seconds(micro, plan, estimate, *profile, mesh, again ? again->seconds : 0) +
                               tensor_seconds(tensor, *profile);
    result.profile = profile->name;
    result.profile_estimated = profile->estimated;
  }
}

}  // namespace cli
