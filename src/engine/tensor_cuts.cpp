#include "engine/tensor_cuts.h"

#include <algorithm>
#include <bit>
#include <string>
#include <vector>

#include "base/text.h"
#include "partition/tensor_faults.h"
#include "zero/error.h"

namespace zero {
namespace {

// None: every rank has it, as the bias of a layer whose inputs are cut.
std::optional<TensorCut> cut_of(const TensorRule& rule, const ParameterInfo& info) {
  const auto cut = rule ? rule(info) : std::nullopt;
  return cut && cut->dim == TensorCut::row.dim && info.shape.size() < 2 ? std::nullopt : cut;
}

std::string fault_of(const ParameterInfo& info, const TensorCut& cut, int ranks, int grain) {
  const std::string name = "parameter '" + info.name + "' of shape " + listed(info.shape);
  if (cut.dim < 0 || cut.dim >= std::ssize(info.shape)) return name + " has no dimension to be cut along";
  if (cut.blocks < 1) return name + " cannot be cut in " + std::to_string(cut.blocks) + " blocks";
  const std::int64_t size = info.shape[static_cast<std::size_t>(cut.dim)];
  const int parts = std::max(ranks, grain);
  if (size > 0 && size % (parts * cut.blocks) == 0) return {};
  const std::string blocks = cut.blocks == 1 ? "" : ", of " + std::to_string(cut.blocks) + " blocks";
  return name + " cannot be cut along dimension " + std::to_string(cut.dim) + ": " + std::to_string(parts) +
         (parts > ranks ? " tiles" : " ranks") + " do not divide " + std::to_string(size) + blocks;
}

// What this rank has of a parameter that is cut.
Tile part_of(const ParameterInfo& info, const TensorCut& cut, int rank, int ranks) {
  const auto dim = static_cast<std::size_t>(cut.dim);
  const std::int64_t all = info.shape[dim];
  return {info.name, rank * (all / cut.blocks / ranks), all / ranks, all, dim, /*cut=*/true, cut.blocks};
}

}  // namespace

void cut(Inventory& inventory, const Mesh& mesh, const Plan& plan, const Optimizer& optimizer, const Options& options) {
  inventory.cuts.assign(inventory.specs.size(), std::nullopt);
  const int ranks = mesh.size(Axis::tensor);
  const int grain = options.tensor_grain;
  if (ranks == 1 && grain == 1) return;
  std::vector<std::string> faults = tensor_faults(plan);
  if (grain != 1 && (grain < 1 || !std::has_single_bit(static_cast<unsigned>(grain)) || grain % ranks != 0))
    faults.push_back("Options::tensor_grain of " + std::to_string(grain) + ": it is 1, or a power of two that " +
                     std::to_string(ranks) + " ranks divide");
  if (grain != 1 && options.sequence_parallel)
    faults.emplace_back(
        "Options::sequence_parallel with Options::tensor_grain: sums of parts of a sequence have no tiles");
  const std::vector<ParameterRule> rules = parameter_rules(optimizer, options.groups, inventory.infos);
  bool any = false;
  for (std::size_t i = 0; i < inventory.specs.size(); ++i) {
    const ParameterInfo& info = inventory.infos[i];
    const auto cut = cut_of(options.tensor, info);
    if (!cut) continue;
    any = true;
    const std::string misfit = fault_of(info, *cut, ranks, grain);
    if (!misfit.empty()) faults.push_back(misfit);
    if (const std::string fault = tensor_fault(rules[i].optimizer); !fault.empty())
      faults.push_back("optimizer " + std::string(name(rules[i].optimizer)) + " of parameter '" + info.name +
                       "', which is cut, " + fault);
    if (inventory.tiles.contains(info.name))
      faults.push_back("parameter '" + info.name + "' is a tile of a zero::TiledLinear, and is not cut");
    if (!misfit.empty()) continue;
    inventory.cuts[i] = cut;
    inventory.specs[i].numel /= ranks;
    inventory.tiles[info.name] = part_of(info, *cut, mesh.rank(Axis::tensor), ranks);
  }
  for (const MaxNorms::Table& table : inventory.max_norms)
    if (inventory.cuts[static_cast<std::size_t>(table.parameter)])
      faults.push_back("embedding '" + table.name + "', which is cut, has rows of a largest norm");
  if (!any) faults.emplace_back("Options::tensor takes no parameter: name layers by zero::tensor_named()");
  if (faults.empty()) return;
  std::string text = "this engine cannot run on " + mesh.shape().text() + ":";
  for (const std::string& fault : faults) text += "\n  - " + fault;
  throw ConfigError(text);
}

}  // namespace zero
