// Finds what there is to train in a module: parameters, grouped into units, and buffers.
#pragma once

#include <ATen/core/Tensor.h>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/trained_module.h"
#include "operators/max_norms.h"
#include "partition/tiles.h"
#include "zero/layout.h"
#include "zero/optimizer.h"
#include "zero/plan.h"
#include "zero/tensor_rule.h"
#include "zero/units.h"

namespace zero {

// Which parameters of a module are rows of what would be one, in every TiledLinear in it.
Tiles tiles_of(const torch::nn::Module& module);

// Parameters that several modules share appear once, under the first name.
struct Inventory {
  std::vector<ParameterSpec> specs;
  std::vector<at::Tensor> parameters;  // in the order of specs
  std::vector<ParameterInfo> infos;    // likewise, whole
  // Likewise, how it is cut over the tensor axis: specs are of this rank's part.
  std::vector<std::optional<TensorCut>> cuts;
  std::vector<Replicated> replicated;
  std::vector<MaxNorms::Table> max_norms;  // of embeddings
  std::vector<std::string> projections;    // parameters by which torch::nn::MultiheadAttention projects its queries
  std::vector<at::Tensor> ignored;         // parameters that are not the engine's
  Tiles tiles;                             // among the parameters, of TiledLinear
  std::shared_ptr<const ModuleView> module;
  at::Device device = at::kCPU;  // on which all of them are
};

// What a program may choose of it; see Options, which has the same names.
struct InventoryChoices {
  const std::function<bool(const ParameterInfo&)>& full_precision;
  const UnitRule& units;
  const std::function<bool(const ParameterInfo&)>& ignored;
};

// A unit is a module that the rule takes, or a tile of a TiledLinear; what is left over is grouped by the module that
// owns it. Throws ConfigError for a rule of the program's that takes no module; for parameters that cannot be managed:
// sparse, complex, overlapping in memory, trained by another engine, or in memory that another tensor shares, which
// would go on without them; for buffers that cannot be broadcast; and where not all are on one device, to which this
// build has a door. Nothing is changed.
Inventory take_inventory(const torch::nn::Module& module, const Plan& plan, const InventoryChoices& choices);
Inventory take_inventory(const torch::jit::Module& module, const Plan& plan, const InventoryChoices& choices);

}  // namespace zero
