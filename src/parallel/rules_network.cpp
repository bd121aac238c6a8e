// Operators of networks: embeddings, norms, attention, and the loss over classes.
#include <ATen/Functions.h>
#include <ATen/SDPBackend.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Reduction.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "parallel/dimensions.h"
#include "parallel/sharded_call.h"

namespace zero::sharded_rules {
namespace {

constexpr AxisPlacement shard(std::int64_t dim) {
  return AxisPlacement::shard(dim);
}

// Numbers of rows or classes, in this rank's part of them, and where they are none of these.
struct OwnNumbers {
  at::Tensor numbers, elsewhere;
};

// As the operator on the whole would: on a device it is an assertion of the device's, and the host does not wait.
void require_within(const at::Tensor& numbers, const at::Tensor& but, std::int64_t all) {
  if (numbers.is_meta()) return;
  const at::Tensor within = numbers.ge(0).logical_and(numbers.lt(all));
  const at::Tensor every = (but.defined() ? within.logical_or(but) : within).all();
  if (!numbers.is_cpu()) return at::_assert_async(every, "a number of a row or class that is cut is out of range");
  TORCH_CHECK_INDEX(every.item<bool>(), "zero: a number is out of the range of ", all,
                    " rows or classes that are cut over a tensor axis");
}

OwnNumbers own_numbers(const at::Tensor& numbers, std::int64_t each, const TensorAxis& axis) {
  const at::Tensor here = numbers - axis.rank() * each;
  const at::Tensor elsewhere = here.lt(0).bitwise_or(here.ge(each));
  return {here.masked_fill(elsewhere, 0), elsewhere};
}

// (weight, indices, padding_idx, ...): of a table whose rows are cut each rank looks its own up.
bool embedding(ShardedCall& call) {
  const TensorPart& weight = call.part(0);
  if (call.sharded(1)) return !weight.placement.sharded() && call.give(call.on_parts(), {call.part(1).placement});
  if (weight.placement.dim == 1) return call.give(call.on_parts(), {shard(call.tensor(1).dim())});
  require_within(call.part(1).values, {}, call.tensor(0).size(0));
  const auto [rows, elsewhere] = own_numbers(call.part(1).values, weight.values.size(0), *call.axis());
  std::vector<c10::IValue> found = call.on_parts({{1, rows}, {2, std::int64_t{-1}}});
  const at::Tensor addend = found.front().toTensor().masked_fill_(elsewhere.unsqueeze(-1), 0);
  const bool sequence = call.axis()->along_sequence() && addend.dim() == 3 && call.axis()->divides(addend.size(1));
  return sequence ? call.give(call.axis()->sum_own(addend, 1), shard(1)) : call.give(addend, AxisPlacement::partial());
}

// Of rows that are cut each rank adds up its own, of gradients of all tokens. LibTorch leaves out rows of the number
// -1.
bool embedding_rows_backward(ShardedCall& call) {
  const std::int64_t rows = call[2].toInt(), padding = call[3].toInt();
  const bool by_frequency = call[4].toBool();
  if (by_frequency || !call.axis()->divides(rows)) return false;
  const at::Tensor& numbers = call.part(1).values;
  const std::int64_t each = rows / call.axis()->size();
  const auto [own, elsewhere] = own_numbers(numbers, each, *call.axis());
  const at::Tensor left_out = padding < 0 ? elsewhere : elsewhere.bitwise_or(numbers.eq(padding));
  return call.give(
      call.on_parts(
          {{0, sharded::whole(call.part(0))}, {1, own.masked_fill(left_out, -1)}, {2, each}, {3, std::int64_t{-1}}}),
      {shard(0)});
}

// (grad_output, indices, num_weights, padding_idx, scale_grad_by_freq): of the table, what the numbers say.
bool embedding_backward(ShardedCall& call) {
  if (call.sharded(1)) return false;
  const bool columns = call.sharded(0) && call.part(0).placement.dim == call.tensor(0).dim() - 1;
  if (call.part(1).of_rows && !columns) return embedding_rows_backward(call);
  return columns && call.give(call.on_parts(), {shard(1)});
}

std::int64_t normalised_dims(const ShardedCall& call, std::size_t i) {
  return static_cast<std::int64_t>(call[i].toIntVector().size());
}

bool within_normalised(const ShardedCall& call, std::size_t tensor, std::int64_t dims) {
  return call.sharded(tensor) && call.part(tensor).placement.dim >= call.tensor(tensor).dim() - dims;
}

// (input, normalized_shape, weight, bias, eps).
bool layer_norm(ShardedCall& call) {
  const std::int64_t dims = normalised_dims(call, 1);
  if (within_normalised(call, 0, dims) || call.sharded(2) || call.sharded(3)) return false;
  return call.give(call.on_parts(), {call.part(0).placement});
}

// (grad_out, input, normalized_shape, mean, rstd, weight, bias, output_mask).
bool layer_norm_backward(ShardedCall& call) {
  const std::int64_t dims = normalised_dims(call, 2);
  const AxisPlacement placement = call.part(1).placement;
  if (!placement.sharded() || within_normalised(call, 1, dims) || call.sharded(5) || call.sharded(6)) return false;
  if (call.axis()->in_tiles()) return false;
  ShardedCall::Changed changed;
  for (const std::size_t i : {0, 3, 4}) {
    if (call.sharded(i) && !(call.part(i).placement == placement)) return false;
    if (!call.sharded(i)) changed.emplace_back(i, call.own(i, placement.cut()).contiguous());
  }
  return call.give(call.on_parts(changed), {placement, AxisPlacement::partial(), AxisPlacement::partial()});
}

// Attention of each head, or each sequence, by itself: what there is of it, from argument `first` to `last`, that is
// cut is cut alike, and of what all ranks have each takes its own.
struct ByHeads {
  std::int64_t dim = 0;
  ShardedCall::Changed changed = {};
};

std::optional<ByHeads> cut_by_heads(const ShardedCall& call, std::size_t first, std::size_t last) {
  std::optional<ByHeads> cut;
  for (std::size_t i = first; i <= last; ++i) {
    if (!call.has_tensor(i)) return {};
    if (!call.sharded(i)) continue;
    if (cut && cut->dim != call.part(i).placement.dim) return {};
    cut = {call.part(i).placement.dim};
  }
  if (!cut || cut->dim > 1) return {};
  for (std::size_t i = first; i <= last; ++i) {
    if (call.sharded(i)) continue;
    if (!call.axis()->divides(call.tensor(i).size(cut->dim))) return {};
    cut->changed.emplace_back(i, call.own(i, {cut->dim}));
  }
  return cut;
}

// Of a mask that is broadcast over what is cut, or has it. `query`: that argument.
bool take_own_mask(const ShardedCall& call, std::size_t query, ByHeads& cut) {
  const int mask = call.find("attn_mask");
  if (mask < 0 || !call.has_tensor(static_cast<std::size_t>(mask))) return true;
  const auto i = static_cast<std::size_t>(mask);
  const std::int64_t more = call.tensor(query).dim() - call.tensor(i).dim(), dim = cut.dim - more;
  if (call.sharded(i)) return call.part(i).placement.dim == dim;
  if (dim >= 0 && call.tensor(i).size(dim) != 1) cut.changed.emplace_back(i, call.own(i, {dim}));
  return true;
}

// (query, key, value, ...): the output, and the logarithm of the sum of each row.
bool attention(ShardedCall& call) {
  auto cut = cut_by_heads(call, 0, 2);
  return cut && take_own_mask(call, 0, *cut) && call.give(call.on_parts(cut->changed), {shard(cut->dim)});
}

// (grad_out, query, key, value, out, logsumexp, ...).
bool attention_backward(ShardedCall& call) {
  auto cut = cut_by_heads(call, 0, 5);
  return cut && take_own_mask(call, 1, *cut) && call.give(call.on_parts(cut->changed), {shard(cut->dim)});
}

// Which kernel attention is computed by: a number, the same for a part.
bool choice_of_attention(ShardedCall& call) {
  auto cut = cut_by_heads(call, 0, 2);
  if (!cut) return false;
  const bool mask_is_trained = call.has_tensor(3) && call.tensor(3).requires_grad() && at::GradMode::is_enabled();
  if (mask_is_trained)
    return call.give({c10::IValue(static_cast<std::int64_t>(at::SDPBackend::math))}, {AxisPlacement()});
  return take_own_mask(call, 0, *cut) && call.give(call.on_parts(cut->changed), {AxisPlacement()});
}

// (self, target, weight, reduction, ignore_index) over classes that are cut, of rows [N, C].
struct OwnClasses {
  at::Tensor targets, ignored, elsewhere;
};

std::optional<OwnClasses> own_classes(const ShardedCall& call, std::size_t self, std::size_t ignore_index) {
  const std::size_t target = self + 1, weight = self + 2;
  if (call.tensor(self).dim() != 2 || call.sharded(target) || call.has_tensor(weight)) return {};
  const at::Tensor ignored = call.part(target).values.eq(call[ignore_index].toInt());
  require_within(call.part(target).values, ignored, call.tensor(self).size(1));
  const auto [numbers, elsewhere] = own_numbers(call.part(target).values, call.part(self).values.size(1), *call.axis());
  return OwnClasses{numbers, ignored, elsewhere.bitwise_or(ignored)};
}

bool nll_loss(ShardedCall& call) {
  if (call.part(0).placement == shard(0)) return false;
  const auto own = own_classes(call, 0, 4);
  if (!own) return false;
  // Of each row one rank has it: the sum over ranks is exact.
  const at::Tensor picked = call.axis()->sum(
      call.part(0).values.gather(1, own->targets.unsqueeze(1)).squeeze(1).masked_fill(own->elsewhere, 0).neg());
  const at::Tensor count = own->ignored.bitwise_not().sum().to(picked.scalar_type());
  const std::int64_t reduction = call[3].toInt();
  at::Tensor loss = reduction == at::Reduction::None ? picked : picked.sum();
  if (reduction == at::Reduction::Mean) loss = loss / count;
  return call.give({loss, reduction == at::Reduction::None ? at::zeros({}, picked.options()) : count},
                   {AxisPlacement()});
}

// (grad_output, self, target, weight, reduction, ignore_index, total_weight).
bool nll_loss_backward(ShardedCall& call) {
  if (!(call.part(1).placement == shard(1)) || call.sharded(0)) return false;
  const auto own = own_classes(call, 1, 5);
  if (!own) return false;
  at::Tensor grad = call.part(0).values;
  if (call[4].toInt() == at::Reduction::Mean) grad = grad / call.part(6).values;
  const at::Tensor each = grad.neg().expand({call.tensor(1).size(0)}).masked_fill(own->elsewhere, 0);
  const at::Tensor result = at::zeros_like(call.part(1).values);
  return call.give(result.scatter_(1, own->targets.unsqueeze(1), each.unsqueeze(1)), shard(1));
}

constexpr NamedShardedRule kNetwork[] = {
    {"embedding", {embedding}},
    {"embedding_dense_backward", {embedding_backward, ShardedRule::rows}},
    {"native_layer_norm", {layer_norm}},
    {"native_layer_norm_backward", {layer_norm_backward}},
    {"_scaled_dot_product_flash_attention_for_cpu", {attention}},
    {"_scaled_dot_product_flash_attention_for_cpu_backward", {attention_backward}},
    {"_fused_sdp_choice", {choice_of_attention}},
    {"nll_loss_forward", {nll_loss}},
    {"nll_loss_backward", {nll_loss_backward}},
};

}  // namespace

std::span<const NamedShardedRule> network() {
  return kNetwork;
}

}  // namespace zero::sharded_rules
