#include "operators/max_norms.h"

#include <ATen/Functions.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <array>

#include "backwards/unwatched.h"
#include "operators/operator_rule.h"
#include "parallel/sharded_tensor.h"
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

constexpr auto kRenorm = std::to_array<OperatorName>({{"aten::embedding_renorm_"}});
constexpr auto kLookups = std::to_array<OperatorName>({{"aten::embedding"},
                                                       {"aten::embedding_bag"},
                                                       {"aten::embedding_bag", "padding_idx"},
                                                       {"aten::_embedding_bag"},
                                                       {"aten::_embedding_bag_forward_only"}});

// That rows of a parameter of an engine are renormalised is noted, and not done.
void note_renormalisation(OperatorCall& call) {
  const at::Tensor table = call.arguments[0].toTensor();
  const Unit* const unit = Unit::of(table.unsafeGetTensorImpl());
  if (unit == nullptr || unit->owner->held(*unit)) return call.proceed();
  const Slot& slot = unit->slot_of(table);
  unit->owner->max_norms().note(slot.index, slot.name, call.arguments[1].toTensor(), call.arguments[2].toDouble(),
                                call.arguments[3].toDouble());
  torch::jit::drop(*call.stack, call.arguments.size());
  torch::jit::push(*call.stack, table);
}

// Gives a lookup in a parameter the renormalised rows; and in 16 bits a dense gradient, as the engine holds it anyway:
// LibTorch cannot add sparse ones there. Of one whose rows are cut the numbers say so.
void adjust_lookup(OperatorCall& call) {
  const at::Tensor table = call.arguments[0].toTensor();
  const Unit* const unit = Unit::of(table.unsafeGetTensorImpl());
  if (unit == nullptr) return call.proceed();
  if (at::isReducedFloatingType(table.scalar_type()))
    for (std::size_t i = 0; i < call.arguments.size(); ++i)
      if (call.op.schema().arguments()[i].name() == "sparse") call.arguments[i] = false;
  if (MaxNorms& max_norms = unit->owner->max_norms(); !max_norms.empty())
    call.arguments[0] = max_norms.seen(unit->slot_of(table).index, table);
  if (call.op.operator_name().name == kLookups.front().name)
    call.arguments[1] = sharded::numbers_of_rows(call.arguments[1].toTensor(), table);
  call.proceed();
}

// Null where it is none of the tables.
auto* found(auto& tables, int parameter) {
  const auto table = std::ranges::find_if(tables, [&](const auto& each) { return each.table.parameter == parameter; });
  return table == tables.end() ? nullptr : &*table;
}

}  // namespace

MaxNorms::MaxNorms(const std::vector<Table>& tables, c10::Device where) {
  for (const Table& table : tables)
    tables_.push_back({table, at::zeros({table.rows}, at::TensorOptions().dtype(at::kByte).device(where))});
}

void MaxNorms::note(int parameter, const std::string& name, const at::Tensor& indices, double max_norm,
                    double norm_type) {
  State* const state = found(tables_, parameter);
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
  const State* const state = found(tables_, parameter);
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

constexpr OperatorRule operator_rules::renormalisation{kRenorm, OperatorRule::with_units, note_renormalisation};
constexpr OperatorRule operator_rules::lookup{kLookups, OperatorRule::with_units, adjust_lookup};

}  // namespace zero
