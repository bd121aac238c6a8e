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

std::int64_t dimension_of(TensorCut cut) {
  return cut == TensorCut::column ? 0 : 1;
}

// None: every rank has it, as the bias of a layer whose inputs are cut.
std::optional<std::int64_t> dimension_of(const TensorRule& rule, const ParameterInfo& info) {
  const auto cut = rule ? rule(info) : std::nullopt;
  if (!cut || (*cut == TensorCut::row && info.shape.size() < 2)) return {};
  return dimension_of(*cut);
}

std::string fault_of(const ParameterInfo& info, std::int64_t dim, int ranks, int grain) {
  const std::string name = "parameter '" + info.name + "' of shape " + listed(info.shape);
  if (static_cast<std::size_t>(dim) >= info.shape.size()) return name + " has no dimension to be cut along";
  const std::int64_t size = info.shape[static_cast<std::size_t>(dim)];
  const int parts = std::max(ranks, grain);
  if (size > 0 && size % parts == 0) return {};
  return name + " cannot be cut along dimension " + std::to_string(dim) + ": " + std::to_string(parts) +
         (parts > ranks ? " tiles" : " ranks") + " do not divide " + std::to_string(size);
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
    const auto dim = dimension_of(options.tensor, info);
    if (!dim) continue;
    any = true;
    if (const std::string fault = fault_of(info, *dim, ranks, grain); !fault.empty()) faults.push_back(fault);
    if (const std::string fault = tensor_fault(rules[i].optimizer); !fault.empty())
      faults.push_back("optimizer " + std::string(name(rules[i].optimizer)) + " of parameter '" + info.name +
                       "', which is cut, " + fault);
    if (inventory.tiles.contains(info.name))
      faults.push_back("parameter '" + info.name + "' is a tile of a zero::TiledLinear, and is not cut");
    const std::int64_t all =
        static_cast<std::size_t>(*dim) < info.shape.size() ? info.shape[static_cast<std::size_t>(*dim)] : 0;
    inventory.cuts[i] = dim;
    inventory.specs[i].numel /= ranks;
    inventory.tiles[info.name] = {info.name, mesh.rank(Axis::tensor) * (all / ranks), all / ranks,
                                  all,       static_cast<std::size_t>(*dim),          /*cut=*/true};
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
