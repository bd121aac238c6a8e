#include "operators/program_functions.h"

#include <ATen/SequenceNumber.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/variable.h>

#include <cstdint>

#include "backwards/micro_batch.h"
#include "backwards/running_backward.h"
#include "operators/operands.h"
#include "units/unit.h"

namespace zero::program_functions {
namespace {

using torch::autograd::Node;

// Numbers of the nodes that came between operators: those of functions of the program's. Operators make all others.
struct Between {
  std::uint64_t behind_latest = 0;  // operator
  std::uint64_t begin = 0, end = 0;
  bool none() const { return begin == end; }
  void forget() { begin = end; }
  bool has(const Node& node) const { return begin <= node.sequence_nr() && node.sequence_nr() < end; }
};
thread_local Between between;

// A view of a parameter may be what the function is given.
constexpr int kMostViews = 4;

Unit* unit_behind(const Node& node, int further) {
  for (const torch::autograd::Edge& edge : node.next_edges()) {
    if (!edge.is_valid()) continue;
    Unit* found = nullptr;
    if (const auto* const parameter = dynamic_cast<const torch::autograd::AccumulateGrad*>(edge.function.get())) {
      found = Unit::of(parameter->variable.unsafeGetTensorImpl());
    } else if (const bool of_program = between.has(*edge.function); of_program || further > 0) {
      found = unit_behind(*edge.function, of_program ? further : further - 1);
    }
    if (found != nullptr) return found;
  }
  return nullptr;
}

Unit* unit_behind(const c10::TensorImpl& tensor) {
  const auto* const meta = static_cast<const torch::autograd::AutogradMeta*>(tensor.autograd_meta());
  if (meta == nullptr || !meta->grad_fn_ || !between.has(*meta->grad_fn_)) return nullptr;
  return unit_behind(*meta->grad_fn_, kMostViews);
}

}  // namespace

void before_operator(std::span<const c10::IValue> arguments) {
  if (const std::uint64_t now = at::sequence_number::peek(); now > between.behind_latest) {
    between.begin = between.behind_latest;
    between.end = now;
  }
  if (between.none()) return;
  if (MicroBatch::open() != nullptr || RunningBackward::current() != nullptr) return between.forget();
  for (const c10::IValue& value : arguments)
    for_each_tensor(value, [](const c10::TensorImpl* tensor) {
      Unit* const unit = between.none() ? nullptr : unit_behind(*tensor);
      if (unit == nullptr) return;
      between.forget();
      MicroBatch& micro_batch = unit->owner->micro_batch();
      micro_batch.used();
      micro_batch.keep_open_for(*tensor);
    });
}

bool inside() {
  return !at::GradMode::is_enabled() && at::sequence_number::peek() > between.behind_latest;
}

void behind_operator() {
  between.behind_latest = at::sequence_number::peek();
}

}  // namespace zero::program_functions
