// Operators that go element by element, over tensors that are broadcast to one another; random draws among them.
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include <algorithm>
#include <array>
#include <optional>
#include <vector>

#include "parallel/sharded_call.h"

namespace zero::sharded_rules {
namespace {

// How tensors that are broadcast are cut, the dimension counted from the last one, as they are aligned; none: in
// several ways.
std::optional<TensorCut> cut_from_behind(const ShardedCall& call) {
  std::optional<TensorCut> cut;
  for (std::size_t i = 0; i < call.size(); ++i) {
    if (!call.sharded(i)) continue;
    const AxisPlacement& placement = call.part(i).placement;
    const TensorCut behind{call.tensor(i).dim() - 1 - placement.dim, placement.blocks};
    if (cut && !(*cut == behind)) return {};
    cut = behind;
  }
  return cut;
}

// What all ranks have is taken in part where it is as long there. In tiles what has gaps is put together: of rows that
// are computed with one by one so many go by vectors, and those at their ends alone, by how long they are.
std::optional<ShardedCall::Changed> aligned(const ShardedCall& call, const TensorCut& behind) {
  ShardedCall::Changed changed;
  for (std::size_t i = 0; i < call.size(); ++i) {
    if (!call.has_tensor(i)) continue;
    if (call.sharded(i)) {
      const at::Tensor& part = call.part(i).values;
      if (call.axis()->in_tiles() && !call.writes(i) && !part.is_non_overlapping_and_dense())
        changed.emplace_back(i, part.contiguous());
      continue;
    }
    if (call.writes(i)) return {};
    const at::Tensor& values = call.part(i).values;
    const std::int64_t dim = values.dim() - 1 - behind.dim;
    if (dim >= 0 && values.size(dim) != 1) changed.emplace_back(i, call.own(i, {dim, behind.blocks}));
  }
  return changed;
}

bool broadcast(ShardedCall& call) {
  const auto behind = cut_from_behind(call);
  if (!behind) return false;
  const auto changed = aligned(call, *behind);
  if (!changed) return false;
  std::int64_t dims = 0;
  for (std::size_t i = 0; i < call.size(); ++i)
    if (call.has_tensor(i)) dims = std::max(dims, call.tensor(i).dim());
  return call.give(call.on_parts(*changed), {AxisPlacement::shard(dims - 1 - behind->dim, behind->blocks)});
}

bool all_partial(const ShardedCall& call) {
  for (std::size_t i = 0; i < call.size(); ++i)
    if (call.has_tensor(i) && !call.part(i).placement.is_partial()) return false;
  return true;
}

bool any_partial(const ShardedCall& call) {
  for (std::size_t i = 0; i < call.size(); ++i)
    if (call.has_tensor(i) && call.part(i).placement.is_partial()) return true;
  return false;
}

// Sums of addends are added up rank by rank.
bool sum_of_two(ShardedCall& call) {
  if (!any_partial(call)) return broadcast(call);
  return call.has_tensor(0) && call.has_tensor(1) && all_partial(call) &&
         call.tensor(0).sizes() == call.tensor(1).sizes() && call.give(call.on_parts(), {AxisPlacement::partial()});
}

// Times a number.
bool multiple(ShardedCall& call) {
  if (!any_partial(call)) return broadcast(call);
  const bool number = !call.has_tensor(1) || (!call.part(1).placement.is_partial() && call.tensor(1).dim() == 0);
  const int rounding = call.find("rounding_mode");
  if (rounding >= 0 && !call[static_cast<std::size_t>(rounding)].isNone()) return false;
  return call.part(0).placement.is_partial() && number && !call.writes(0) &&
         call.give(call.on_parts(), {AxisPlacement::partial()});
}

// Its memory is in the order that the whole would have, as numbers are drawn.
at::Tensor like_the_whole(const ShardedCall& call) {
  const at::Tensor whole = call.tensor(0);
  return at::empty_strided(whole.sizes(), whole.strides(), call.part(0).values.options());
}

// Numbers are drawn for the whole, so that they are those of one rank, and all ranks' generators go on alike.
bool drawn_in_place(ShardedCall& call) {
  if (!call.sharded(0)) return false;
  for (std::size_t i = 1; i < call.size(); ++i)
    if (call.has_tensor(i)) return false;
  const TensorPart& part = call.part(0);
  const at::Tensor all = like_the_whole(call);
  call.on_parts({{0, all}});
  part.values.copy_(call.axis()->own(all, part.placement.cut()));
  return call.give({call[0]}, {part.placement});
}

// The same of a new tensor like the first argument.
bool drawn(ShardedCall& call) {
  if (!call.sharded(0)) return false;
  const TensorPart& part = call.part(0);
  std::vector<c10::IValue> all = call.on_parts({{0, like_the_whole(call)}});
  return call.give(call.axis()->own(all.front().toTensor(), part.placement.cut()).contiguous(), part.placement);
}

bool native_dropout(ShardedCall& call) {
  const TensorPart& part = call.part(0);
  std::vector<c10::IValue> all = call.on_parts({{0, at::ones(call.tensor(0).sizes(), part.values.options())}});
  const auto own = [&](const c10::IValue& value) {
    return call.axis()->own(value.toTensor(), part.placement.cut()).contiguous();
  };
  return call.give({part.values * own(all[0]), own(all[1])}, {part.placement});
}

constexpr const char* kBroadcasting[] = {"abs",
                                         "abs_",
                                         "acos",
                                         "addcdiv",
                                         "addcdiv_",
                                         "addcmul",
                                         "addcmul_",
                                         "asin",
                                         "atan",
                                         "atan2",
                                         "bitwise_and",
                                         "bitwise_not",
                                         "bitwise_or",
                                         "ceil",
                                         "celu",
                                         "clamp",
                                         "clamp_",
                                         "clamp_max",
                                         "clamp_max_",
                                         "clamp_min",
                                         "clamp_min_",
                                         "copy_",
                                         "cos",
                                         "elu",
                                         "elu_",
                                         "elu_backward",
                                         "empty_like",
                                         "eq",
                                         "erf",
                                         "exp",
                                         "exp_",
                                         "expm1",
                                         "fill_",
                                         "floor",
                                         "full_like",
                                         "ge",
                                         "gelu",
                                         "gelu_",
                                         "gelu_backward",
                                         "gt",
                                         "hardsigmoid",
                                         "hardswish",
                                         "hardswish_",
                                         "hardswish_backward",
                                         "hardtanh",
                                         "hardtanh_",
                                         "hardtanh_backward",
                                         "isfinite",
                                         "isinf",
                                         "isnan",
                                         "le",
                                         "leaky_relu",
                                         "leaky_relu_",
                                         "leaky_relu_backward",
                                         "lerp",
                                         "lerp_",
                                         "log",
                                         "log1p",
                                         "log2",
                                         "logical_and",
                                         "logical_not",
                                         "logical_or",
                                         "log_sigmoid_backward",
                                         "lt",
                                         "masked_fill",
                                         "masked_fill_",
                                         "maximum",
                                         "minimum",
                                         "mish",
                                         "mish_",
                                         "mish_backward",
                                         "nan_to_num",
                                         "native_dropout_backward",
                                         "ne",
                                         "ones_like",
                                         "pow",
                                         "pow_",
                                         "reciprocal",
                                         "relu",
                                         "relu_",
                                         "remainder",
                                         "round",
                                         "rsqrt",
                                         "rsub",
                                         "sgn",
                                         "sigmoid",
                                         "sigmoid_",
                                         "sigmoid_backward",
                                         "sign",
                                         "silu",
                                         "silu_",
                                         "silu_backward",
                                         "sin",
                                         "softplus",
                                         "softplus_backward",
                                         "softshrink",
                                         "sqrt",
                                         "sqrt_",
                                         "square",
                                         "mul_",
                                         "div_",
                                         "tan",
                                         "tanh",
                                         "tanh_",
                                         "tanh_backward",
                                         "threshold",
                                         "threshold_backward",
                                         "trunc",
                                         "where",
                                         "xlogy",
                                         "zero_",
                                         "zeros_like",
                                         "_to_copy",
                                         "neg_",
                                         "lift_fresh",
                                         "special_expit"};

constexpr unsigned kPartial = ShardedRule::partial | ShardedRule::blocks;
constexpr NamedShardedRule kOthers[] = {
    {"add", {sum_of_two, kPartial}},
    {"add_", {sum_of_two, kPartial}},
    {"sub", {sum_of_two, kPartial}},
    {"sub_", {sum_of_two, kPartial}},
    {"mul", {multiple, kPartial}},
    {"div", {multiple, kPartial}},
    {"neg", {multiple, kPartial}},
    {"bernoulli_", {drawn_in_place, ShardedRule::blocks}},
    {"uniform_", {drawn_in_place, ShardedRule::blocks}},
    {"normal_", {drawn_in_place, ShardedRule::blocks}},
    {"exponential_", {drawn_in_place, ShardedRule::blocks}},
    {"random_", {drawn_in_place, ShardedRule::blocks}},
    {"rand_like", {drawn, ShardedRule::blocks}},
    {"randn_like", {drawn, ShardedRule::blocks}},
    {"native_dropout", {native_dropout, ShardedRule::blocks}},
};

constexpr auto kPointwise = [] {
  std::array<NamedShardedRule, std::size(kBroadcasting) + std::size(kOthers)> all{};
  auto end = std::ranges::copy(kOthers, all.begin()).out;
  for (const char* const name : kBroadcasting) *end++ = {name, {broadcast, ShardedRule::blocks}};
  return all;
}();

}  // namespace

std::span<const NamedShardedRule> pointwise() {
  return kPointwise;
}

}  // namespace zero::sharded_rules
