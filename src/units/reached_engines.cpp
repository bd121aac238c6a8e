// Which engines a backward reaches, read off its graph before it begins.
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <iterator>
#include <unordered_set>
#include <utility>

#include "backwards/running_backward.h"
#include "units/unit.h"

namespace zero {
namespace {

using torch::autograd::Node;

TakesGradients* engine_of(const at::Tensor& parameter) {
  const Unit* const unit = parameter.defined() ? Unit::of(parameter.unsafeGetTensorImpl()) : nullptr;
  return unit == nullptr ? nullptr : dynamic_cast<TakesGradients*>(unit->owner);
}

// At most so many of them.
std::unordered_set<const TakesGradients*> reached_by(at::TensorList roots, std::size_t most) {
  std::unordered_set<const TakesGradients*> engines;
  std::unordered_set<const Node*> seen;
  std::vector<const Node*> left;
  const auto come_to = [&](const Node* node) {
    if (node != nullptr && seen.insert(node).second) left.push_back(node);
  };
  for (const at::Tensor& root : roots) {
    if (!root.defined()) continue;
    come_to(root.grad_fn().get());
    if (const TakesGradients* const engine = engine_of(root)) engines.insert(engine);
  }
  while (!left.empty() && engines.size() < most) {
    const Node* const node = left.back();
    left.pop_back();
    for (const torch::autograd::Edge& edge : node->next_edges()) come_to(edge.function.get());
    const auto* const leaf = dynamic_cast<const torch::autograd::AccumulateGrad*>(node);
    if (const TakesGradients* const engine = leaf == nullptr ? nullptr : engine_of(leaf->variable))
      engines.insert(engine);
  }
  return engines;
}

}  // namespace

void RunningBackward::foresee(at::TensorList roots) {
  std::vector<TakesGradients*> possible;
  const auto leads = [this](const TakesGradients* engine) { return !parts_.empty() && parts_.front() == engine; };
  with_engines_here([&](const std::vector<TakesGradients*>& engines) {
    std::copy_if(engines.rbegin(), engines.rend(), std::back_inserter(possible),
                 [&](const TakesGradients* each) { return of_program_ || leads(each) || each->joins_others(); });
  });
  if (possible.size() < 2) return;
  const auto reached = reached_by(roots, possible.size());
  std::erase_if(possible, [&](const TakesGradients* each) { return !leads(each) && !reached.contains(each); });
  foreseen_ = std::move(possible);
}

}  // namespace zero
