#include "planner/answer_json.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/text.h"
#include "models/schema.h"
#include "partition/plan_settings.h"
#include "planner/activation_choice.h"
#include "planner/activation_theory.h"
#include "planner/loss_price.h"
#include "planner/quantity.h"

namespace planner {
namespace {

using Json = nlohmann::ordered_json;

// Settings that are chosen for each plan of an answer. The others all have in common.
constexpr std::array<std::string_view, 2> kOfOnePlan{"offload", "delay_update"};
constexpr std::array kOffloadable{zero::State::parameter, zero::State::gradient, zero::State::optimizer};

Json known(double value) {
  return std::isfinite(value) ? Json(value) : Json();
}

Json encode_moved(const zero::TierTraffic& moved, zero::Tier tier) {
  Json json = Json::object();
  for (const zero::State state : kOffloadable) {
    const zero::TierTraffic::Entry& entry = moved.on(tier, state);
    if (entry.total() > 0) json[std::string(name(state))] = {{"read", entry.read}, {"written", entry.written}};
  }
  return json;
}

void add_setting(Json& json, const zero::PlanSetting& setting, const zero::Plan& plan) {
  std::visit([&](const auto& value) { json[std::string(setting.name)] = value; }, setting.get(plan));
}

// Of plans with states on other tiers.
void add_tiers(Json& json, const Cost& cost) {
  if (zero::offload_of(cost.plan).empty()) return;
  for (const std::string_view each : kOfOnePlan) add_setting(json, zero::plan_setting(each), cost.plan);
  json["tiers"] = Json::array();
  for (const zero::Tier tier : {zero::Tier::host, zero::Tier::disk}) {
    const zero::StateBytes state = cost.estimate.on(tier);
    const zero::TierTraffic moved = cost.estimate.moved.step();
    if (state.total() == 0 && moved.on(tier).total() == 0) continue;
    json["tiers"].push_back({{"tier", std::string(name(tier))},
                             {"parameter_bytes", state.parameter},
                             {"gradient_bytes", state.gradient},
                             {"optimizer_bytes", state.optimizer},
                             {"moved_per_step", encode_moved(moved, tier)}});
  }
  if (cost.priced())
    json["tier_seconds"] = {{"beside", cost.tiers.beside},
                            {"alone", cost.tiers.alone},
                            {"reading", cost.tiers.reading},
                            {"updating", cost.tiers.updating},
                            {"writing", cost.tiers.writing}};
}

Json encode(const Cost& cost) {
  const zero::Estimate& estimate = cost.estimate;
  return {{"plan", cost.plan.label()},
          {"parameter_bytes", estimate.state.parameter},
          {"gradient_bytes", estimate.state.gradient},
          {"optimizer_bytes", estimate.state.optimizer},
          {"state_gb", rounded(static_cast<double>(estimate.state.total()) / 1e9, 3)},
          {"activation_bytes", cost.activations.bytes},
          {"buffer_bytes", cost.estimate.buffers()},
          {"peak_bytes", cost.peak},
          {"wire_bytes_per_step", cost.wire()},
          {"step_seconds", known(cost.seconds)},
          {"tokens_per_second", known(cost.speed.tokens_per_second)},
          {"mfu", cost.speed.utilization ? Json(*cost.speed.utilization) : Json()},
          {"fits", cost.fits()},
          {"rounds", cost.rounds},
          {"peak_moment", cost.moment},
          {"batch", cost.batch},
          {"accumulate", cost.plan.accumulate()},
          {"padding_bytes", cost.padding},
          {"gathered_bytes", estimate.held[zero::Owner::gathered].peak},
          {"reduction_bytes", estimate.held[zero::Owner::reduction].peak},
          {"update_bytes", estimate.held[zero::Owner::update].peak},
          {"wire_bytes_inside_hosts", cost.estimate.wire.within_host()},
          {"wire_bytes_across_hosts", cost.estimate.wire.across_hosts()},
          {"tensor_wire_bytes", cost.tensor.bytes}};
}

// Of plans whose activations have a budget, or that were given smaller micro-batches.
void add_budget(Json& json, const Cost& cost) {
  if (cost.dearer != 0) json["seconds_more"] = cost.dearer;
  if (!cost.plan.activation_budget()) return;
  add_setting(json, zero::plan_setting("activation_budget"), cost.plan);
  json["recomputation_seconds"] = cost.priced() ? Json(cost.plan.accumulate() * cost.again.seconds) : Json();
  json["recomputation_share"] = cost.again.share;
}

// What a preset chooses otherwise than the first of the plans has it.
void add_own_wires(Json& json, const zero::Plan& plan, const std::vector<zero::Plan>& plans) {
  for (const char* name : {"reduce_in", "gather_in", "keep_gathered"})
    if (const zero::PlanSetting& each = zero::plan_setting(name); each.get(plan) != each.get(plans.front()))
      add_setting(json, each, plan);
}

// Of plans that round, where it was measured.
void add_loss(Json& json, const Cost& cost) {
  const std::optional<LossPrice> price = cost.rounds ? loss_price(cost.plan) : std::nullopt;
  if (price) json["loss_percent"] = {{"mean", price->mean}, {"worst", price->worst}};
}

void add_reach(Json& json, const Cost& cost, const Reach& reach) {
  if (!cost.fits()) json["excess_bytes"] = cost.excess;
  if (cost.host_excess > 0) json["excess_host_bytes"] = cost.host_excess;
  if (cost.disk_excess > 0) json["excess_disk_bytes"] = cost.disk_excess;
  if (!cost.fits()) json["reason"] = reach.reasons;
  json["largest_parameters"] = reach.largest_parameters;
  json["largest_batch"] = reach.largest_batch;
  json["longest_seq"] = reach.longest_seq;
  json["longest_seq_of_batch_1"] = reach.longest_seq_alone;
  if (reach.split) json["split"] = {{"batch", reach.split->batch}, {"accumulate", reach.split->accumulate}};
  json["least_ranks"] = reach.least_ranks > 0 ? Json(reach.least_ranks) : Json();
}

// Bytes of all layers.
Json encode_theory(const Request& request) {
  const models::LlamaConfig& config = request.shape.config;
  const Transformer model{.heads = static_cast<double>(config.num_attention_heads),
                          .hidden = static_cast<double>(config.hidden_size),
                          .seq = static_cast<double>(request.seq),
                          .batch = static_cast<double>(request.batch)};
  const auto bytes = [&](Recompute recompute) {
    return std::llround(layer_activations(model, 1, false, recompute) * static_cast<double>(config.num_hidden_layers));
  };
  return {
      {"none", bytes(Recompute::none)}, {"selective", bytes(Recompute::selective)}, {"full", bytes(Recompute::full)}};
}

Json encode(const DeepSpeed& read) {
  return {{"taken", read.taken}, {"not_needed", read.not_needed}, {"automatic", read.automatic}};
}

Json encode_plans(const Answer& answer) {
  Json plans = Json::array();
  for (std::size_t i = 0; i < answer.costs.size(); ++i) {
    plans.push_back(encode(answer.costs[i]));
    add_tiers(plans.back(), answer.costs[i]);
    add_own_wires(plans.back(), answer.costs[i].plan, answer.request.plans);
    add_budget(plans.back(), answer.costs[i]);
    add_loss(plans.back(), answer.costs[i]);
    if (!answer.reach.empty()) add_reach(plans.back(), answer.costs[i], answer.reach[i]);
  }
  return plans;
}

// What all plans of an answer have in common.
void add_plan(Json& json, const zero::Plan& plan) {
  for (const zero::PlanSetting& each : zero::plan_settings())
    if (!std::ranges::count(kOfOnePlan, each.name)) add_setting(json, each, plan);
}

}  // namespace

Answer answer(Request request, std::string model, std::string optimizer) {
  Answer result{.request = std::move(request), .model = std::move(model), .optimizer = std::move(optimizer)};
  result.costs = price(result.request);
  if (!result.request.device_memory) return result;
  choose_activations(result.request, result.costs);
  Request asked = result.request;
  for (const Cost& cost : result.costs) {
    asked.batch = cost.batch;
    result.reach.push_back(reach_of(asked, cost));
  }
  return result;
}

namespace {

// Of the first plan that misses something.
std::string sentence_of_missing(const Answer& answer) {
  const auto found = std::ranges::find_if(answer.costs, [](const Cost& cost) { return !cost.priced(); });
  if (found == answer.costs.end()) return {};
  const bool disk = std::ranges::count(found->missing, "disk_read_bandwidth") > 0;
  return "the profile has no " + zero::joined(found->missing) + ", so that a step of " + found->plan.label() +
         " has no seconds: measure with zero bench profile" + (disk ? " --disk DIR" : "") + ", or add them";
}

}  // namespace

std::vector<std::string> assumptions(const Answer& answer) {
  std::vector<std::string> sentences = answer.request.shape.assumed;
  sentences.insert(sentences.end(), answer.request.assumed.begin(), answer.request.assumed.end());
  const Profile& profile = answer.request.profile;
  sentences.push_back("the machine: profile " + profile.name + (profile.estimated ? kEstimated : ""));
  if (answer.request.shape.tensor > 1 && profile.device_memory > 0)
    sentences.emplace_back(
        "devices with a tensor axis, which engines of this version refuse: they cut modules of the CPU");
  if (profile.collective_bandwidth == 0)
    sentences.emplace_back("devices without links between them: what they exchange goes through their host's memory");
  if (answer.request.memory == zero::Memory::common)
    sentences.emplace_back("one host, whose memory holds sharded parameters for all ranks: --memory separate if not");
  if (const std::string sentence = sentence_of_missing(answer); !sentence.empty()) sentences.push_back(sentence);
  if (!answer.request.device_memory) sentences.push_back("every plan fits, since no device memory is given");
  return sentences;
}

std::string to_json(const Answer& answer) {
  const Request& request = answer.request;
  Json json = models::stamped(models::kPlan);
  json.update({{"ranks", request.ranks}, {"parameters", request.shape.of_model}, {"plans", encode_plans(answer)}});
  if (!answer.model.empty()) json["model"] = answer.model;
  if (!request.plans.empty()) add_plan(json, request.plans.front());
  json["hosts"] = request.hosts;
  json["shard_ranks"] = request.shard;
  json["tensor"] = request.shape.tensor;
  json["optimizer"] = answer.optimizer;
  json["batch"] = request.batch;
  json["seq"] = request.seq;
  json["recompute"] = name(request.shape.config.activations.recompute);
  json["loss_pieces"] = request.shape.config.activations.loss_pieces;
  json["activation_theory_bytes"] = encode_theory(request);
  json["device_memory"] = request.device_memory ? Json(*request.device_memory) : Json();
  if (request.host_memory) json["host_memory"] = *request.host_memory;
  if (request.disk_space) json["disk_space"] = *request.disk_space;
  json["memory"] = request.memory == zero::Memory::common ? "common" : "separate";
  json["profile"] = request.profile.name;
  json["profile_file"] = answer.profile_file.empty() ? Json() : Json(answer.profile_file);
  json["profile_estimated"] = request.profile.estimated;
  json["network_bandwidth"] = request.profile.network_bandwidth;
  if (!answer.command.empty()) json["command"] = answer.command;
  json["assumed"] = assumptions(answer);
  if (answer.deepspeed) json["ds_config"] = encode(*answer.deepspeed);
  json["fitting"] = Json::array();
  for (const std::size_t i : ranking(answer.costs)) json["fitting"].push_back(answer.costs[i].plan.label());
  return json.dump(2) + "\n";
}

}  // namespace planner
