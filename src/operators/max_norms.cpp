#include "operators/max_norms.h"

#include <ATen/Functions.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <array>

#include "backwards/unwatched.h"
#include "units/unit.h"
#include "zero/error.h"

namespace zero {
namespace {

// Other values for what is the same parameter to autograd.
struct Renormalised : torch::autograd::Function<Renormalised> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor&, const at::Tensor& values) {
    return values;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 const torch::autograd::variable_list& gradients) {
    return {gradients[0], at::Tensor()};
  }
};

const c10::OperatorHandle& renorm() {
  static const c10::OperatorHandle op = c10::Dispatcher::singleton().findSchemaOrThrow("aten::embedding_renorm_", "");
  return op;
}

bool looks_up(const c10::OperatorHandle& op) {
  static const auto ops = [] {
    const auto find = [](const char* name, const char* overload) {
      return c10::Dispatcher::singleton().findSchemaOrThrow(name, overload);
    };
    return std::array{find("aten::embedding", ""), find("aten::embedding_bag", ""),
                      find("aten::embedding_bag", "padding_idx"), find("aten::_embedding_bag", ""),
                      find("aten::_embedding_bag_forward_only", "")};
  }();
  return std::ranges::find(ops, op) != ops.end();
}

}  // namespace

MaxNorms::MaxNorms(const std::vector<Table>& tables, c10::Device where) {
  for (const Table& table : tables)
    tables_.push_back({table, at::zeros({table.rows}, at::TensorOptions().dtype(at::kByte).device(where))});
}

const MaxNorms::State* MaxNorms::find(int parameter) const {
  const auto found =
      std::ranges::find_if(tables_, [&](const State& state) { return state.table.parameter == parameter; });
  return found == tables_.end() ? nullptr : &*found;
}

MaxNorms::State* MaxNorms::find(int parameter) {
  return const_cast<State*>(std::as_const(*this).find(parameter));
}

void MaxNorms::note(int parameter, const std::string& name, const at::Tensor& indices, double max_norm,
                    double norm_type) {
  State* const state = find(parameter);
  if (state == nullptr)
    throw StateError("a lookup would renormalise rows of parameter '" + name + "', of which the engine does not know",
                     "set max_norm in the options of the torch::nn::Embedding or EmbeddingBag that owns it");
  if (state->table.max_norm != max_norm || state->table.norm_type != norm_type)
    throw StateError("parameter '" + name + "' is looked up with two largest norms", "give it one max_norm");
  const Unwatched unwatched;
  state->looked_up.index_fill_(0, indices.reshape({-1}).to(at::kLong), 1);
  state->pending = state->pending || indices.numel() > 0;
}

at::Tensor MaxNorms::seen(int parameter, const at::Tensor& weight) const {
  const State* const state = find(parameter);
  if (state == nullptr || !state->pending) return weight;
  const Unwatched unwatched;
  at::Tensor values = weight.detach().clone();
  renormalise(state->table, values, state->looked_up.nonzero().reshape({-1}));
  return Renormalised::apply(weight, values);
}

void MaxNorms::renormalise(const Table& table, const at::Tensor& weight, const at::Tensor& indices) {
  at::NoGradGuard no_grad;
  at::Tensor rows = weight;
  at::embedding_renorm_(rows, indices, table.max_norm, table.norm_type);
}

std::vector<MaxNorms::Due> MaxNorms::settle(int ranks, const Gather& gather) {
  const Unwatched unwatched;
  std::vector<Due> due;
  for (State& state : tables_) {
    const std::int64_t rows = state.table.rows;
    const at::Tensor all = at::empty({ranks, rows}, state.looked_up.options());
    const auto view = [](const at::Tensor& bytes) {
      return view_of(bytes.mutable_data_ptr(), Dtype::u8, 0, bytes.numel(), bytes.device());
    };
    gather(view(state.looked_up), view(all));
    state.looked_up.zero_();
    state.pending = false;
    const at::Tensor indices = std::get<0>(all.max(0)).nonzero().reshape({-1});
    if (indices.numel() > 0) due.push_back({state.table, indices});
  }
  return due;
}

void MaxNorms::forget() {
  for (State& state : tables_) {
    state.looked_up.zero_();
    state.pending = false;
  }
}

bool note_renormalisation(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  if (op != renorm()) return false;
  const auto arguments = torch::jit::last(*stack, 4);
  const at::Tensor table = arguments[0].toTensor();
  const Unit* const unit = Unit::of(table.unsafeGetTensorImpl());
  if (unit == nullptr || unit->owner->held(*unit)) return false;
  const Slot& slot = unit->slot_of(table);
  unit->owner->max_norms().note(slot.index, slot.name, arguments[1].toTensor(), arguments[2].toDouble(),
                                arguments[3].toDouble());
  torch::jit::drop(*stack, 4);
  torch::jit::push(*stack, table);
  return true;
}

void adjust_lookup(const c10::OperatorHandle& op, std::span<c10::IValue> arguments) {
  if (!looks_up(op)) return;
  const at::Tensor table = arguments[0].toTensor();
  const Unit* const unit = Unit::of(table.unsafeGetTensorImpl());
  if (unit == nullptr) return;
  if (at::isReducedFloatingType(table.scalar_type()))
    for (std::size_t i = 0; i < arguments.size(); ++i)
      if (op.schema().arguments()[i].name() == "sparse") arguments[i] = false;
  if (MaxNorms& max_norms = unit->owner->max_norms(); !max_norms.empty())
    arguments[0] = max_norms.seen(unit->slot_of(table).index, table);
}

}  // namespace zero
