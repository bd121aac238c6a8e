// What it costs in loss to round what travels, as far as that was measured. No torch.
#pragma once

#include <optional>
#include <span>

#include "zero/mesh_shape.h"
#include "zero/plan.h"

namespace planner {

// Percent by which final losses are above those of zero3 in bf16 without codes: the mean over three seeds of the micro
// model, trained for 2,000 steps, and the worst of them (docs/numbers.md, "What coded wires cost"; bench/losses.py).
struct LossPrice {
  zero::Wire gathered, reduced;  // what parameters and gradients travel in
  bool feeds_back;               // what gradients lose so (Plan::error_feedback)
  double mean, worst;
};
std::span<const LossPrice> loss_prices();

// Whether ranks of that mesh compute with what was rounded to codes, on its way or where it is kept: else their bits
// are those of every such plan.
bool rounds(const zero::Plan& plan, const zero::MeshShape& mesh);
// None: not measured.
std::optional<LossPrice> loss_price(const zero::Plan& plan);

}  // namespace planner
