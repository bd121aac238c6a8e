#include "ranks/scenario/settings.h"

#include <torch/optim.h>

#include <array>
#include <bit>
#include <variant>

#include "optimizers.h"
#include "ranks/scenario/course.h"
#include "ranks/torch_optimizers.h"

namespace zero::test::scenario {
namespace {

const std::vector<Optimizer>& optimizers() {
  static const std::vector<Optimizer> all = [] {
    std::vector<Optimizer> list;
    for (const auto& some : {every_optimizer(), narrow_moments(), whole_optimizers(), our_own_options()})
      list.insert(list.end(), some.begin(), some.end());
    list.push_back(brought<torch::optim::SGD>(torch::optim::SGDOptions(0.05).momentum(0.9), "torch's SGD"));
    list.push_back(brought<torch::optim::Adam>(torch::optim::AdamOptions(2e-3).eps(1e-4), "torch's Adam"));
    return list;
  }();
  return all;
}

std::size_t chosen(const Scenario& scenario, Setting setting) {
  return static_cast<std::size_t>(scenario.settings[setting]);
}

const std::string& option(const Scenario& scenario, Setting setting) {
  return fields<Setting>()[static_cast<std::size_t>(setting)].options[chosen(scenario, setting)];
}

bool matrix(const ParameterInfo& info) {
  return info.shape.size() == 2;
}
bool vector(const ParameterInfo& info) {
  return info.shape.size() <= 1;
}
// What is multiplied with by linear layers alone.
bool of_linear_layer(const ParameterInfo& info) {
  return hidden_matrix(info) && info.name.find("cell") == std::string::npos;
}

std::vector<ParamGroup> groups_of(const Scenario& scenario) {
  switch (scenario.settings[Setting::groups]) {
    case 1: return {no_decay_on_norms_biases_embeddings()};
    case 2:
      return {{.takes = [](const ParameterInfo& info) { return info.name.starts_with("head"); }, .lr_scale = 0.5}};
    case 3: return {{.takes = vector, .optimizer = Sgd{.lr = 0.05, .momentum = 0.9}}};
    case 4: return {{.takes = matrix, .optimizer = Lamb{.lr = 1e-2, .eps = 1e-4}}};
    case 5: return {{.takes = matrix, .optimizer = AdamW{.lr = 2e-3, .eps = 1e-4, .format = MomentFormat::block8}}};
    default: return {};
  }
}

UnitRule units_of(const Scenario& scenario) {
  switch (scenario.settings[Setting::units]) {
    case 1: return units_by_size(64, 1500);
    case 2: return [](const ModuleInfo& info) { return info.name.empty(); };
    case 3: return units_named({"blocks.*", "head"});
    default: return {};
  }
}

std::optional<LossScale> loss_scale_of(const Scenario& scenario) {
  switch (scenario.settings[Setting::loss_scale]) {
    case 1: return LossScale{.initial = 1024, .window = 2};
    case 2: return LossScale::fixed(8);
    case 3: return LossScale{.initial = 0x1p18, .window = 3, .hysteresis = 2};
    default: return {};
  }
}

}  // namespace

std::vector<std::string> names_of_optimizers() {
  std::vector<std::string> names;
  for (const Optimizer& each : optimizers()) names.push_back(describe(each));
  return names;
}

int ranks_of(const Scenario& scenario) {
  return std::stoi(option(scenario, Setting::ranks));
}

int accumulate_of(const Scenario& scenario) {
  return std::stoi(option(scenario, Setting::accumulate));
}

std::int64_t width_of(const Scenario& scenario) {
  return std::stoi(option(scenario, Setting::width));
}

Precision precision_of(const Scenario& scenario) {
  return precision_named(option(scenario, Setting::precision));
}

bool delays(const Scenario& scenario) {
  return chosen(scenario, Setting::delay) != 0;
}

// A group of one rank more than there are is one of all.
MeshShape mesh_of(const Scenario& scenario, int plan) {
  const int shard = scenario.plans[static_cast<std::size_t>(plan)][PlanChoice::shard], ranks = ranks_of(scenario);
  return MeshShape(ranks, {.shard = shard == 0 || ranks % shard != 0 ? ranks : shard});
}

Plan plan_of(const Scenario& scenario, int plan) {
  const Choices<PlanChoice>& choices = scenario.plans[static_cast<std::size_t>(plan)];
  const std::vector<Field>& table = fields<PlanChoice>();
  Plan made = Plan::named(table[0].options[static_cast<std::size_t>(choices[PlanChoice::preset])]);
  made = made.precision(precision_of(scenario))
             .accumulate(accumulate_of(scenario))
             .reproducible(chosen(scenario, Setting::reproducible) != 0)
             .delay_update(delays(scenario));
  if (const int share = choices[PlanChoice::optimizer]; share != 0)
    made = made.offload(State::optimizer, Tier::disk, std::array{1.0, 0.5, 0.1}[static_cast<std::size_t>(share) - 1]);
  if (choices[PlanChoice::gradient] != 0) made = made.offload(State::gradient, Tier::disk);
  if (choices[PlanChoice::parameter] != 0) made = made.offload(State::parameter, Tier::disk);
  if (choices[PlanChoice::wire] != 0) made = made.gather_in(Wire::fp8);
  if (const int kept = choices[PlanChoice::kept]; kept != 0)
    made = made.keep_gathered(kept == 1 ? KeptCopy::shard : KeptCopy::host);
  if (choices[PlanChoice::budget] != 0) made = made.resident_budget(choices[PlanChoice::budget] == 1 ? 1 : 6000);
  if (choices[PlanChoice::overlap] != 0) made = made.overlap(2);
  if (const int in = scenario.settings[Setting::reduce_in]; in != 0)
    made = made.reduce_in(std::array{Dtype::bf16, Dtype::f32, Dtype::f16}[static_cast<std::size_t>(in) - 1]);
  return made;
}

Optimizer optimizer_of(const Scenario& scenario) {
  return optimizers()[chosen(scenario, Setting::optimizer)];
}

Options options_of(const Scenario& scenario, const std::string& folder) {
  Options options{.seed = 5, .groups = groups_of(scenario), .loss_scale = loss_scale_of(scenario)};
  options.clip = std::array{0.0, 0.5, 0.01}[chosen(scenario, Setting::clip)];
  if (chosen(scenario, Setting::schedule) != 0) options.schedule = linear_schedule({.warmup = 2, .steps = 8}, 0.1);
  const bool biases = precision_of(scenario) != Precision::fp8;  // with which a layer is not computed in FP8
  if (const int full = scenario.settings[Setting::full_precision]; full != 0)
    options.full_precision = full == 1 || !biases ? norms : vector;
  options.units = units_of(scenario);
  options.float8 = {.scaling = chosen(scenario, Setting::float8_scales) == 0 ? Scaling::current : Scaling::delayed,
                    .history = 2,
                    .takes = of_linear_layer};
  options.group_norms = chosen(scenario, Setting::group_norms) != 0;
  options.disk = {.directories = {folder}, .checks = chosen(scenario, Setting::checks) != 0, .block = 4096, .depth = 2};
  return options;
}

bool gathers_in_codes(const Scenario& scenario) {
  const auto coded = [&](int plan) { return scenario.plans[static_cast<std::size_t>(plan)][PlanChoice::wire] != 0; };
  Course course(scenario);
  for (const Event& event : scenario.events) {
    if (coded(course.plan())) return true;
    course.follow(event);
  }
  return coded(course.plan());
}

bool in_blocks_of_8_bits(const Scenario& scenario) {
  return moment_format(optimizer_of(scenario)) == MomentFormat::block8 || scenario.settings[Setting::groups] == 5;
}

bool has_plain_optimizer(const Scenario& scenario) {
  const Optimizer optimizer = optimizer_of(scenario);
  if (scenario.settings[Setting::groups] > 2) return false;
  const bool theirs = std::holds_alternative<Sgd>(optimizer) || std::holds_alternative<AdaGrad>(optimizer) ||
                      std::holds_alternative<RmsProp>(optimizer) || std::holds_alternative<Adam>(optimizer) ||
                      std::holds_alternative<AdamW>(optimizer);
  const auto* const rms = std::get_if<RmsProp>(&optimizer);
  const auto* const adam = std::get_if<AdamW>(&optimizer);
  return theirs && !(rms != nullptr && rms->eps_inside_root) && !(adam != nullptr && !adam->decay_by_lr);
}

bool in_16_bits(const Scenario& scenario) {
  return precision_of(scenario) != Precision::fp32 || option(scenario, Setting::reduce_in).ends_with("16");
}

double plain_tolerance(const Scenario& scenario) {
  return in_16_bits(scenario) || moment_format(optimizer_of(scenario)) != MomentFormat::wide ? 0.3 : 2e-4;
}

double plain_rounding(const Scenario& scenario) {
  switch (precision_of(scenario)) {
    case Precision::fp32: return 0x1p-22;
    case Precision::fp8: return 0x1p-4;
    default: return 0x1p-8;
  }
}

bool saturates(const Scenario& scenario) {
  return precision_of(scenario) == Precision::fp8 && scenario.settings[Setting::float8_scales] != 0;
}

Reference reference_of(const Scenario& scenario) {
  Reference found{scenario};
  Scenario& reference = found.scenario;
  const int ranks = ranks_of(scenario), accumulate = accumulate_of(scenario);
  const bool along_a_tree = scenario.settings[Setting::reproducible] != 0;
  const bool one_order = accumulate == 1 || ranks == 1;
  const bool any_order = one_order || (along_a_tree && alike_in_any_order(scenario));
  for (std::size_t i = 0; i < scenario.plans.size(); ++i) {
    const Choices<PlanChoice>& tested = scenario.plans[i];
    const int number = static_cast<int>(i);
    const zero::Row gradient = plan_of(scenario, number).on(mesh_of(scenario, number))[State::gradient];
    Choices<PlanChoice>& plan = reference.plans[i] = {};
    const bool sharded = gradient.between.shard == Placement::sharded;
    if (!any_order && sharded) plan[PlanChoice::preset] = 2;
    found.other_order = found.other_order || (any_order && !one_order && sharded);
    if (tested[PlanChoice::wire] != 0) plan[PlanChoice::preset] = tested[PlanChoice::preset];
    plan[PlanChoice::wire] = tested[PlanChoice::wire];
    plan[PlanChoice::shard] = tested[PlanChoice::shard];
    if (delays(scenario)) plan[PlanChoice::optimizer] = 1;
  }
  const bool blocks = in_blocks_of_8_bits(scenario) || gathers_in_codes(scenario);
  if (!blocks) reference.settings[Setting::units] = 0;
  return found;
}

}  // namespace zero::test::scenario
