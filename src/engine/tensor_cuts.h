// What of a module is cut over the tensor axis of its engine's mesh.
#pragma once

#include "engine/module_inventory.h"
#include "zero/engine.h"
#include "zero/mesh.h"
#include "zero/plan.h"

namespace zero {

// Cuts the inventory's parameters as Options::tensor has it; along an axis of one rank none. Throws ConfigError,
// listing every fault: of parameters whose sizes the ranks do not divide, or that an optimizer needs whole, and of what
// an engine cannot do along that axis.
void cut(Inventory& inventory, const Mesh& mesh, const Plan& plan, const Optimizer& optimizer, const Options& options);

}  // namespace zero
