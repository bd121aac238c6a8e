// Operators that look at a tensor in another shape, or at a part of it, along other dimensions than the one that is
// cut.
#include <ATen/Functions.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <optional>
#include <vector>

#include "parallel/dimensions.h"
#include "parallel/sharded_call.h"

namespace zero::sharded_rules {
namespace {

using Sizes = std::vector<std::int64_t>;

std::size_t index_of(std::int64_t index) {
  return static_cast<std::size_t>(index);
}

std::int64_t product(const Sizes& sizes, std::int64_t count) {
  return std::accumulate(sizes.begin(), sizes.begin() + count, std::int64_t{1}, std::multiplies<>());
}

AxisPlacement moved(const ShardedCall& call, std::int64_t dim) {
  return call.part(0).placement.sharded() ? AxisPlacement::shard(dim) : call.part(0).placement;
}

std::int64_t cut_of(const ShardedCall& call) {
  return call.part(0).placement.dim;
}

// Of addends too: what it does to the whole, it does to each.
bool as_it_is(ShardedCall& call) {
  return call.give(call.on_parts(), {call.part(0).placement});
}

bool t(ShardedCall& call) {
  const std::int64_t dims = call.tensor(0).dim();
  return call.give(call.on_parts(), {moved(call, dims < 2 ? cut_of(call) : 1 - cut_of(call))});
}

bool transpose(ShardedCall& call) {
  const std::int64_t dims = call.tensor(0).dim(), cut = cut_of(call);
  const std::int64_t a = from_front(call[1].toInt(), dims), b = from_front(call[2].toInt(), dims);
  const std::int64_t dim = cut == a ? b : cut == b ? a : cut;
  return call.give(call.on_parts(), {moved(call, dim)});
}

bool permute(ShardedCall& call) {
  const Sizes order = dims_of(call[1], call.tensor(0).dim());
  const auto found = std::ranges::find(order, cut_of(call));
  return call.give(call.on_parts(), {moved(call, found - order.begin())});
}

bool unsqueeze(ShardedCall& call) {
  const std::int64_t dim = from_front(call[1].toInt(), call.tensor(0).dim() + 1);
  return call.give(call.on_parts(), {moved(call, cut_of(call) + (dim <= cut_of(call) ? 1 : 0))});
}

// By the global sizes: a part may be of size 1 where the whole is not.
bool squeeze(ShardedCall& call) {
  const at::Tensor whole = call.tensor(0);
  Sizes dims;
  for (const std::int64_t dim : dims_of(call.size() > 1 ? call[1] : c10::IValue(), whole.dim()))
    if (whole.dim() > 0 && whole.size(dim) == 1) dims.push_back(dim);
  const auto before = std::ranges::count_if(dims, [&](std::int64_t dim) { return dim < cut_of(call); });
  return call.give(call.part(0).values.squeeze(dims), moved(call, cut_of(call) - before));
}

// Where the elements before the dimension that is cut are those before one of the new sizes.
std::optional<std::int64_t> cut_in(const Sizes& from, std::int64_t cut, const Sizes& to, const TensorAxis& axis) {
  const std::int64_t before = product(from, cut);
  for (std::int64_t dim = 0; dim < static_cast<std::int64_t>(to.size()); ++dim)
    if (to[index_of(dim)] > 1 && product(to, dim) == before)
      return axis.divides(to[index_of(dim)]) ? std::optional(dim) : std::nullopt;
  return {};
}

bool view(ShardedCall& call) {
  const at::Tensor whole = call.tensor(0);
  if (!call[1].isIntList()) return false;
  if (!call.sharded(0)) return as_it_is(call);
  if (whole.numel() == 0) return false;
  Sizes to = call[1].toIntVector();
  const auto rest = std::ranges::find(to, -1);
  if (rest != to.end()) {
    *rest = 1;
    *rest = whole.numel() / product(to, static_cast<std::int64_t>(to.size()));
  }
  const auto dim = cut_in(whole.sizes().vec(), cut_of(call), to, *call.axis());
  if (!dim) return call.axis()->along_sequence() && call.gather();  // to matrices, before a product
  to[index_of(*dim)] /= call.axis()->size();
  return call.give(call.part(0).values.reshape(to), AxisPlacement::shard(*dim));
}

bool expand(ShardedCall& call) {
  if (!call.sharded(0)) return as_it_is(call);
  Sizes sizes = call[1].toIntVector();
  const std::int64_t more = static_cast<std::int64_t>(sizes.size()) - call.tensor(0).dim();
  const std::int64_t dim = cut_of(call) + more;
  sizes[index_of(dim)] = -1;
  return call.give(call.on_parts({{1, sizes}}), {AxisPlacement::shard(dim)});
}

// Of one of its places, and of all of them.
bool select_or_unbind(ShardedCall& call) {
  const std::int64_t dim = from_front(call[1].toInt(), call.tensor(0).dim()), cut = cut_of(call);
  if (call.sharded(0) && dim == cut) return false;
  return call.give(call.on_parts(), {moved(call, cut - (dim < cut ? 1 : 0))});
}

bool slice(ShardedCall& call) {
  const at::Tensor whole = call.tensor(0);
  if (!call.sharded(0) || from_front(call[1].toInt(), whole.dim()) != cut_of(call)) return as_it_is(call);
  const bool from_first = call[2].isNone() || call[2].toInt() == 0;
  const bool to_last = call[3].isNone() || call[3].toInt() >= whole.size(cut_of(call));
  if (!from_first || !to_last || call[4].toInt() != 1) return false;
  return call.give(call.part(0).values.alias(), call.part(0).placement);
}

// Its dimension is the last argument.
bool split(ShardedCall& call) {
  const std::int64_t dim = from_front(call[call.size() - 1].toInt(), call.tensor(0).dim());
  return !(call.sharded(0) && dim == cut_of(call)) && as_it_is(call);
}

bool repeat(ShardedCall& call) {
  if (!call.sharded(0)) return as_it_is(call);
  const Sizes times = call[1].toIntVector();
  const std::int64_t dim = cut_of(call) + static_cast<std::int64_t>(times.size()) - call.tensor(0).dim();
  return times[index_of(dim)] == 1 && call.give(call.on_parts(), {AxisPlacement::shard(dim)});
}

// Gradients of views: sizes of the whole are among the arguments.
bool slice_backward(ShardedCall& call) {
  if (!call.sharded(0)) return as_it_is(call);
  Sizes sizes = call[1].toIntVector();
  if (from_front(call[2].toInt(), static_cast<std::int64_t>(sizes.size())) == cut_of(call)) return false;
  sizes[index_of(cut_of(call))] /= call.axis()->size();
  return call.give(call.on_parts({{1, sizes}}), {call.part(0).placement});
}

bool select_backward(ShardedCall& call) {
  if (!call.sharded(0)) return as_it_is(call);
  Sizes sizes = call[1].toIntVector();
  const std::int64_t dim = from_front(call[2].toInt(), static_cast<std::int64_t>(sizes.size()));
  const std::int64_t cut = cut_of(call) + (dim <= cut_of(call) ? 1 : 0);
  sizes[index_of(cut)] /= call.axis()->size();
  return call.give(call.on_parts({{1, sizes}}), {AxisPlacement::shard(cut)});
}

// Parts of the same dimension, and of what all ranks have this one's.
std::optional<c10::List<at::Tensor>> alike(const ShardedCall& call, std::int64_t& cut) {
  const auto parts = call.parts(0);
  const auto first = std::ranges::find_if(parts, [](const TensorPart& part) { return part.placement.sharded(); });
  cut = first->placement.dim;
  c10::List<at::Tensor> list;
  for (const TensorPart& part : parts) {
    if (part.placement.sharded() && part.placement.dim != cut) return {};
    if (!part.placement.sharded() && part.values.dim() <= cut) return {};
    list.push_back(part.placement.sharded() ? part.values : call.axis()->own(part.values, cut));
  }
  return list;
}

bool cat(ShardedCall& call) {
  std::int64_t cut = 0;
  const auto list = alike(call, cut);
  if (!list || from_front(call[1].toInt(), list->get(0).dim()) == cut) return false;
  return call.give(call.on_parts({{0, *list}}), {AxisPlacement::shard(cut)});
}

bool stack(ShardedCall& call) {
  std::int64_t cut = 0;
  const auto list = alike(call, cut);
  if (!list) return false;
  const std::int64_t dim = from_front(call[1].toInt(), list->get(0).dim() + 1);
  return call.give(call.on_parts({{0, *list}}), {AxisPlacement::shard(cut + (dim <= cut ? 1 : 0))});
}

// Along another dimension, which is the first number among the arguments; what else is read all ranks have.
bool along_another(ShardedCall& call) {
  for (std::size_t i = 1; i < call.size(); ++i)
    if (call.sharded(i)) return false;
  const auto dim = static_cast<std::size_t>(std::max(call.find("dim"), 1));
  if (!call[dim].isInt() || from_front(call[dim].toInt(), call.tensor(0).dim()) == cut_of(call)) return false;
  return as_it_is(call);
}

bool triangle(ShardedCall& call) {
  return cut_of(call) < call.tensor(0).dim() - 2 && as_it_is(call);
}

constexpr NamedShardedRule kViews[] = {
    {"alias", {as_it_is, true}},
    {"detach", {as_it_is, true}},
    {"clone", {as_it_is, true}},
    {"t", {t, true}},
    {"transpose", {transpose, true}},
    {"permute", {permute, true}},
    {"unsqueeze", {unsqueeze, true}},
    {"squeeze", {squeeze, true}},
    {"view", {view, true}},
    {"_unsafe_view", {view, true}},
    {"_reshape_alias", {view, true}},
    {"expand", {expand, true}},
    {"select", {select_or_unbind, true}},
    {"slice", {slice, true}},
    {"split", {split, true}},
    {"split_with_sizes", {split, true}},
    {"unsafe_split", {split, true}},
    {"unsafe_split_with_sizes", {split, true}},
    {"unbind", {select_or_unbind, true}},
    {"repeat", {repeat, true}},
    {"slice_backward", {slice_backward, true}},
    {"select_backward", {select_backward, true}},
    {"cat", {cat}},
    {"stack", {stack}},
    {"index_select", {along_another}},
    {"cumsum", {along_another}},
    {"tril", {triangle}},
    {"triu", {triangle}},
};

}  // namespace

std::span<const NamedShardedRule> views() {
  return kViews;
}

}  // namespace zero::sharded_rules
