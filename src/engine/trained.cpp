#include "engine/trained.h"

#include <algorithm>
#include <string>

#include "engine/same_on_ranks.h"
#include "partition/element_order.h"
#include "partition/full_tensor_owners.h"
#include "partition/slices.h"
#include "partition/staying.h"
#include "zero/error.h"

namespace zero {
namespace {

// The options, of a plan whose tiers the model's device has.
Options with_tiers(const Plan& plan, Options options, c10::Device where) {
  for (const State state : {State::parameter, State::gradient, State::optimizer}) {
    const Tier tier = plan[state].tier;
    if (tier == Tier::device) continue;
    const std::string what = std::string(name(state)) + " on tier " + std::string(name(tier));
    if (tier == Tier::host && where.is_cpu())
      throw ConfigError(what + ": the model is on the CPU, whose memory that is already",
                        "use Tier::disk, or move the model to a device");
    if (tier == Tier::disk && options.disk.directories.empty())
      throw ConfigError(what + ": no directory was given", "name one, for each disk, in Options::disk.directories");
  }
  if (plan.delays_update() && !where.is_cpu() && plan[State::gradient].tier == Tier::device)
    throw ConfigError("a delayed update reads gradients beside the model's computing, which are on its device",
                      "offload them, too: Plan::offload(State::gradient, Tier::host)");
  return options;
}

const Mesh& with_groups(const Plan& plan, const Mesh& mesh) {
  const int here = mesh.world().communicator().topology().ranks_per_host;
  const std::string missing = missing_groups(plan, mesh.shape(), here);
  if (missing.empty()) return mesh;
  throw ConfigError(missing, "make a group of each host's ranks: Mesh(world, {.shard = " + std::to_string(here) +
                                 "}), or --shard-ranks " + std::to_string(here));
}

std::vector<std::pair<std::string, at::Tensor>> named_parameters(const Inventory& inventory) {
  std::vector<std::pair<std::string, at::Tensor>> named;
  for (std::size_t i = 0; i < inventory.specs.size(); ++i)
    named.emplace_back(inventory.specs[i].name, inventory.parameters[i]);
  return named;
}

// Of what this rank has of each parameter.
std::vector<ParameterRule> rules_of_parts(const Inventory& inventory, const Optimizer& optimizer,
                                          const std::vector<ParamGroup>& groups) {
  std::vector<ParameterRule> rules = parameter_rules(optimizer, groups, inventory.infos);
  for (std::size_t i = 0; i < rules.size(); ++i) {
    if (!inventory.cuts[i] || inventory.specs[i].numel == 0) continue;
    const std::int64_t ranks = elements_of(rules[i].shape) / inventory.specs[i].numel;
    rules[i].shape[static_cast<std::size_t>(inventory.cuts[i]->dim)] /= ranks;
  }
  return rules;
}

}  // namespace

Trained::Trained(const Inventory& inventory, const Mesh& mesh, const Plan& plan, const Optimizer& optimizer,
                 Options options)
    : plan_(plan),
      resolved_(plan.on(with_groups(plan, mesh).shape(), mesh.world().communicator().topology().ranks_per_host)),
      routes_(resolved_, mesh.world().rank()),
      options_(with_tiers(plan_, std::move(options), inventory.device)),
      optimizer_(optimizer),
      infos_(inventory.infos),
      cuts_(inventory.cuts),
      rules_(rules_of_parts(inventory, optimizer, options_.groups)),
      module_(inventory.module, named_parameters(inventory), options_.ignored),
      tiles_(inventory.tiles),
      layout_(inventory.specs, mesh.shape(), slices_of(plan, rules_)),
      staying_(zero::staying(resolved_, layout_, rules_)) {
  if (!(options_.clip >= 0)) throw ConfigError("clip must be a number that is not negative");
  for (std::size_t i = 0; plan_.delays_update() && i < rules_.size(); ++i)
    if (full_tensor_work(rules_[i].optimizer))
      throw ConfigError("optimizer " + std::string(name(rules_[i].optimizer)) + " of parameter '" + infos_[i].name +
                            "' computes steps of whole tensors with the other ranks, which a delayed update cannot",
                        "use one that goes element by element, or do without Plan::delay_update()");
}

std::vector<std::string> Trained::description(const Inventory& inventory) const {
  std::vector<std::string> lines = zero::description(plan_, inventory, infos_, rules_, options_);
  const std::string kind = c10::DeviceTypeName(inventory.device.type(), /*lower_case=*/true);
  lines.insert(lines.begin() + 1, {"a mesh of " + layout_.mesh().text(), "parameters on devices of kind " + kind});
  return lines;
}

int Trained::group_of(int parameter) const {
  const auto& groups = options_.groups;
  const ParameterInfo& info = infos_[static_cast<std::size_t>(parameter)];
  const auto found = std::ranges::find_if(groups, [&](const ParamGroup& group) { return group.takes(info); });
  return found == groups.end() ? -1 : static_cast<int>(found - groups.begin());
}

// Of replaced parameters a backward would not tell.
void Trained::require_module() {
  const std::vector<std::string> changes = module_.changes();
  if (changes.empty()) return;
  std::string text = changes.size() == 1 ? changes.front() : "the model has changed:";
  for (const std::string& change : changes)
    if (changes.size() > 1) text += "\n  - " + change;
  throw StateError(text,
                   "copy values into a parameter, inside zero::gather; build a new engine for other layers; let "
                   "Options::ignored take what the program adds for itself");
}

}  // namespace zero
