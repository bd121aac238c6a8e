#include "cli/commands/plan_command.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <iostream>
#include <set>

#include "cli/complain.h"
#include "cli/files.h"
#include "cli/options/model.h"
#include "cli/options/places.h"
#include "cli/options/recipe.h"
#include "cli/options/setting_options.h"
#include "cli/options/validators.h"
#include "cli/report/format.h"
#include "cli/report/report.h"
#include "planner/fit.h"
#include "planner/plan_file.h"
#include "planner/processor.h"
#include "planner/quantity.h"

namespace cli {
namespace {

// Where none is given.
std::int64_t usual_seq(const planner::Shape& shape) {
  return std::min(kUsualSeq, shape.config.max_position_embeddings);
}

std::string sentence_of_seq(const planner::Shape& shape) {
  const std::int64_t seq = usual_seq(shape);
  return "sequences of " + with_separators(seq) + " tokens" +
         (seq < kUsualSeq ? ", as many as the model has positions" : "") + ": --seq if not";
}

constexpr const char* kConfiguration = "--ds-config";

// Both may say it, if they say the same.
template <class T>
std::optional<T> agreed(const char* option, const std::optional<T>& given, const std::optional<T>& read) {
  if (given && read && *given != *read) contradict(option, text(*given), kConfiguration, text(*read));
  return given ? given : read;
}

planner::Known known_of(const PlanOptions& options) {
  planner::Known known{.batch = options.batch};
  if (options.settings.says("accumulate")) known.accumulate = options.settings.plan().accumulate();
  return known;
}

PlanOptions with(PlanOptions options, const planner::DeepSpeed& read) {
  options.batch = agreed("--batch", options.batch, read.batch);
  options.settings = cli::agreed(options.settings, read.settings, kConfiguration);
  options.optimizer = agreed("--optimizer", options.optimizer, read.optimizer);
  if (read.plan && !options.plans.empty() && !std::ranges::count(options.plans, *read.plan))
    throw UsageError("--plans contradicts --ds-config, which says " + *read.plan);
  if (options.plans.empty() && read.plan) options.plans = {*read.plan};
  if (read.shard_ranks && options.shard_ranks != 0 && options.shard_ranks != *read.shard_ranks)
    throw UsageError("--shard-ranks contradicts --ds-config, whose groups are of " + std::to_string(*read.shard_ranks));
  options.shard_ranks = read.shard_ranks.value_or(options.shard_ranks);
  return options;
}

// Of equal ones, the first.
void keep_first(std::vector<std::string>& names) {
  std::set<std::string> seen;
  std::erase_if(names, [&](const std::string& each) { return !seen.insert(each).second; });
}

// Where groups of ranks may be hosts, plans that round what crosses are weighed, too, as far as other options go with
// them.
void add_coded_plans(PlanOptions& options) {
  if (options.hosts == 1 || options.shard_ranks == 0 || options.ranks % options.shard_ranks != 0) return;
  const std::vector<std::string_view> exact = zero::Plan::exact_presets();
  for (const std::string_view preset : zero::Plan::presets())
    if (!std::ranges::count(exact, preset) &&
        options.settings.plan(zero::Plan::named(preset)).faults(mesh_of(options, options.ranks)).empty())
      options.plans.emplace_back(preset);
}

// With defaults for what is left open.
PlanOptions completed(PlanOptions options) {
  const RunOptions usual;
  if (!options.settings.says("precision")) options.settings.set("precision", "bf16");
  options.optimizer = options.optimizer.value_or(usual.optimizer);
  options.batch = options.batch.value_or(usual.batch);
  if (options.plans.empty()) {
    options.plans = usual_plans(options);
    if (options.fit && options.tensor == 1) add_coded_plans(options);
  }
  keep_first(options.plans);
  return options;
}

planner::Shape shape_of(const PlanOptions& options) {
  if (!options.parameters.empty()) {
    planner::Shape shape = planner::shape_of(planner::parameters_of(options.parameters), options.tensor);
    shape.config.activations = activations_of(options);
    return shape;
  }
  if (options.model.empty()) throw UsageError("plan: give --model or --parameters");
  return planner::shape_of(load_model(options.model, options), options.tensor);
}

// What ranks of this machine can do may have been measured; devices that are asked about may be elsewhere.
bool here(const PlanOptions& options) {
  return options.hosts == 1 && options.device_memory.empty();
}

// Ranks share their host's memory where they compute in it. What travels in FP8 is not read where it lies, and what is
// on disk does not lie there.
zero::Memory memory_of(const PlanOptions& options, bool in_host_memory) {
  const zero::Plan plan = options.settings.plan();
  const zero::Row& parameter = plan[zero::State::parameter];
  const bool native = parameter.wire == zero::Wire::native;
  const bool as_it_lies = native && parameter.tier == zero::Tier::device;
  if (options.memory == "common" && !as_it_lies)
    throw UsageError("--memory common contradicts " +
                     (native ? "--offload " + options.settings.text("offload") + ": parameters are there"
                             : "--gather-in " + options.settings.text("gather_in") + ": what travels is not common"));
  const bool common = options.memory == "common" || (options.memory == "auto" && in_host_memory && as_it_lies);
  return common ? zero::Memory::common : zero::Memory::separate;
}

std::string name_of_profile(const PlanOptions& options, zero::Precision precision) {
  if (!options.profile.empty()) return options.profile;
  const std::string measured = planner::usual_profile_path();
  std::error_code error;
  const bool known =
      here(options) && std::filesystem::exists(measured, error) && planner::profile_named(measured).knows(precision);
  return known ? measured : "h100";
}

// A network of one's own goes for that of the profile.
void take_network(const PlanOptions& options, planner::Request& request) {
  if (options.network.empty()) return;
  if (options.hosts == 1) throw UsageError("--network is that between hosts, and there is one: give --hosts");
  request.profile.network_bandwidth = planner::bandwidth_of(options.network);
  request.assumed.push_back("the network: " + options.network + " for each rank; of a card that the " +
                            std::to_string(options.ranks / options.hosts) +
                            " ranks of a host share, give each its part");
}

// Where the profile that was asked for is of devices, a rank has the memory of one.
std::optional<std::int64_t> device_memory_of(const PlanOptions& options, const planner::Profile& profile) {
  if (!options.device_memory.empty()) return planner::bytes_of(options.device_memory);
  if (!options.profile.empty() && profile.device_memory > 0) return std::llround(profile.device_memory);
  return {};
}

// Which only ranks on devices do.
bool offloads_to_host(const zero::Plan& plan) {
  constexpr std::array states{zero::State::parameter, zero::State::gradient, zero::State::optimizer};
  return std::ranges::any_of(states, [&](zero::State state) { return plan[state].tier == zero::Tier::host; });
}

planner::Request request_of(const PlanOptions& options, const std::string& profile) {
  if (options.ranks % options.hosts != 0)
    throw UsageError("--hosts: " + std::to_string(options.ranks) + " ranks do not divide among " +
                     std::to_string(options.hosts) + " hosts");
  planner::Request request{.shape = shape_of(options),
                           .ranks = options.ranks,
                           .hosts = options.hosts,
                           .shard = options.shard_ranks,
                           .batch = *options.batch,
                           .optimizer = make_optimizer(*options.optimizer),
                           .profile = planner::profile_named(profile)};
  request.seq = options.seq.value_or(usual_seq(request.shape));
  if (!options.seq) request.assumed.push_back(sentence_of_seq(request.shape));
  take_network(options, request);
  request.device_memory = device_memory_of(options, request.profile);
  const bool on_this_host = !request.device_memory && options.hosts == 1;
  request.memory = memory_of(options, on_this_host);
  if (on_this_host) request.product_scratch = planner::product_scratch();
  if (!options.host_memory.empty()) request.host_memory = planner::bytes_of(options.host_memory);
  if (!options.disk_space.empty()) request.disk_space = planner::bytes_of(options.disk_space);
  request.chooses_activations =
      options.fit && options.tensor == 1 && options.settings.text("activation_budget").empty();
  request.chooses_tiers = options.fit && options.settings.text("offload").empty();
  if (options.fit && !request.device_memory)
    throw UsageError("--fit: give --device-memory, or a --profile of devices, which has their memory");
  for (const std::string& each : options.plans) request.plans.push_back(make_plan(options, each, options.ranks));
  request.in_host_memory = on_this_host && std::ranges::none_of(request.plans, offloads_to_host);
  return request;
}

// The plans that fit first, in order.
void reorder(planner::Answer& answer) {
  std::vector<std::size_t> order = planner::ranking(answer.costs);
  for (std::size_t i = 0; i < answer.costs.size(); ++i)
    if (!answer.costs[i].fits()) order.push_back(i);
  planner::Answer ordered = answer;
  for (std::size_t place = 0; place < order.size(); ++place) {
    ordered.costs[place] = answer.costs[order[place]];
    ordered.reach[place] = answer.reach[order[place]];
  }
  answer = std::move(ordered);
}

planner::Answer answer_of(const PlanOptions& options) {
  const std::string profile = name_of_profile(options, options.settings.plan().precision());
  planner::Answer answer = planner::answer(request_of(options, profile), options.model, *options.optimizer);
  if (!std::ranges::count(planner::given_profiles(), profile)) answer.profile_file = profile;
  answer.command = options.command;
  return answer;
}

// Whether the first plan is worth other ranks along the tensor axis than those of `before`: it fits where that does
// not, or takes a tenth less of the time for as many tokens, and rounds no more.
bool worth_it(const planner::Answer& answer, const planner::Answer& before) {
  constexpr double kLess = .9;
  const planner::Cost &cost = answer.costs.front(), &other = before.costs.front();
  if (!cost.fits() || !other.fits()) return cost.fits();
  const bool known = cost.priced() && other.priced();
  return cost.rounds <= other.rounds && known && cost.seconds < kLess * other.seconds;
}

// With as many ranks along the tensor axis, within a host, as is fastest, or as fits at all, and as many tokens a step:
// ranks that share a model take their micro-batches together. An axis that cannot be, since it does not divide the
// layers or does not go with other options, is none. A step of --ds-config has its ranks, and so have groups.
planner::Answer fitting_answer(PlanOptions& options) {
  planner::Answer best = answer_of(options);
  reorder(best);
  PlanOptions other = options;
  std::erase_if(other.plans, [](const std::string& plan) {
    return std::ranges::count(zero::Plan::exact_presets(), std::string_view(plan)) == 0;
  });
  const bool said = options.tensor_given || !options.ds_config.empty() || options.shard_ranks > 0;
  if (said || other.plans.empty()) return best;
  PlanOptions chosen = options;
  std::string tried = "1";
  for (other.tensor = 2; other.tensor <= options.ranks / options.hosts; other.tensor *= 2) try {
      other.batch = *options.batch * other.tensor;
      planner::Answer answer = answer_of(other);
      reorder(answer);
      tried += ", " + std::to_string(other.tensor);
      if (!worth_it(answer, best)) continue;
      chosen = other;
      best = std::move(answer);
    } catch (const zero::ConfigError&) {
      continue;
    }
  if (chosen.tensor > 1)
    best.request.assumed.push_back("a tensor axis of " + std::to_string(chosen.tensor) + " ranks, the best of " +
                                   tried + ", with micro-batches of " + std::to_string(*chosen.batch) +
                                   ", as many tokens a step: --tensor if not");
  options = std::move(chosen);
  return best;
}

planner::PlanFile plan_file_of(const PlanOptions& options, const planner::Answer& answer) {
  const zero::Plan& chosen = answer.costs.front().plan;
  return {.plan = chosen.preset(),
          .settings = zero::PlanSettings(chosen),
          .optimizer = *options.optimizer,
          .ranks = options.ranks,
          .shard_ranks = options.shard_ranks,
          .tensor = options.tensor,
          .model = options.model,
          .batch = answer.costs.front().batch,
          .seq = answer.request.seq,
          .recompute = options.recompute,
          .loss_pieces = options.loss_pieces,
          .command = options.command};
}

int fit(const PlanOptions& options, const planner::Answer& answer, std::ostream* text) {
  if (text) print_fit(*text, answer);
  if (!answer.costs.front().fits()) {
    if (text) *text << "\nNo plan fits.\n";
    if (!text) complain("no plan fits");
    return 1;
  }
  const planner::PlanFile file = plan_file_of(options, answer);
  write_file(options.out, to_json(file));
  if (text) *text << "\nWrote " << options.out << ": " << label_of(answer, answer.costs.front()) << ".\n";
  return 0;
}

void check_outputs(const PlanOptions& options) {
  const std::string out = options.fit ? options.out : "";
  const auto file = [](const std::string& name, const auto& presets) {
    return std::ranges::count(presets, name) ? std::string() : name;
  };
  check_apart({{"--model", file(options.model, models::llama_presets()), Place::Use::reads},
               {"--profile", file(options.profile, planner::given_profiles()), Place::Use::reads},
               {"--ds-config", options.ds_config, Place::Use::reads},
               {"--json", options.json, Place::Use::writes},
               {"--out", out, Place::Use::writes}});
  for (const std::string& path : {options.json, out})
    if (!path.empty()) check_writable(path);
}

}  // namespace

int plan(const PlanOptions& given) {
  check_outputs(given);
  std::optional<planner::DeepSpeed> read;
  if (!given.ds_config.empty())
    read = planner::read_deepspeed(given.ds_config, mesh_of(given, given.ranks).size(), known_of(given));
  PlanOptions options = completed(read ? with(given, *read) : given);
  planner::Answer answer = options.fit ? fitting_answer(options) : answer_of(options);
  answer.deepspeed = std::move(read);
  const bool other = is_standard_output(options.json) || (options.fit && is_standard_output(options.out));
  std::ostream* const text = other ? nullptr : &std::cout;
  if (text) print_plans(*text, answer);
  const int code = options.fit ? fit(options, answer, text) : 0;
  if (!options.json.empty()) write_file(options.json, planner::to_json(answer));
  return code;
}

}  // namespace cli
