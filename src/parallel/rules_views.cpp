// Operators that look at a tensor in another shape, or at a part of it: along other dimensions than the one that is
// cut, or at whole blocks of that.
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
  return call.part(0).placement.at(dim);
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

// Each block's parts lie one behind the other. The blocks, of all that is before them, are as many in the new sizes: of
// the dimension within which they end.
std::optional<TensorCut> cut_in(const Sizes& from, const TensorCut& cut, const Sizes& to, const TensorAxis& axis) {
  const std::int64_t all = product(from, cut.dim) * cut.blocks;
  for (std::int64_t dim = 0; dim < static_cast<std::int64_t>(to.size()); ++dim) {
    const std::int64_t before = product(to, dim), size = to[index_of(dim)];
    if (before * size <= all) continue;
    const std::int64_t blocks = all / before;
    const bool fits = all % before == 0 && size % (blocks * axis.size()) == 0;
    return fits ? std::optional(TensorCut{dim, blocks}) : std::nullopt;
  }
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
  const auto cut = cut_in(whole.sizes().vec(), call.part(0).placement.cut(), to, *call.axis());
  const bool matrices = to.size() == 2 && cut_of(call) == whole.dim() - 2;
  if (call.axis()->along_sequence() && (!cut || (matrices && cut->blocks > 1))) return call.gather();  // for a product
  if (!cut) return false;
  to[index_of(cut->dim)] /= call.axis()->size();
  return call.give(call.part(0).values.reshape(to), AxisPlacement::shard(*cut));
}

bool expand(ShardedCall& call) {
  if (!call.sharded(0)) return as_it_is(call);
  Sizes sizes = call[1].toIntVector();
  const std::int64_t more = static_cast<std::int64_t>(sizes.size()) - call.tensor(0).dim();
  const std::int64_t dim = cut_of(call) + more;
  sizes[index_of(dim)] = -1;
  return call.give(call.on_parts({{1, sizes}}), {moved(call, dim)});
}

// Of one of its places, and of all of them.
bool select_or_unbind(ShardedCall& call) {
  const std::int64_t dim = from_front(call[1].toInt(), call.tensor(0).dim()), cut = cut_of(call);
  if (call.sharded(0) && dim == cut) return false;
  return call.give(call.on_parts(), {moved(call, cut - (dim < cut ? 1 : 0))});
}

// Along the dimension that is cut, of `block` elements each: how many blocks these are; none: part of one is among
// them.
std::optional<std::int64_t> blocks_in(std::int64_t elements, std::int64_t block) {
  return block > 0 && elements > 0 && elements % block == 0 ? std::optional(elements / block) : std::nullopt;
}

std::int64_t block_of(const ShardedCall& call) {
  return call.tensor(0).size(cut_of(call)) / call.part(0).placement.blocks;
}

// (self, dim, start, end, step).
bool slice(ShardedCall& call) {
  const at::Tensor whole = call.tensor(0);
  const std::int64_t cut = cut_of(call);
  if (!call.sharded(0) || from_front(call[1].toInt(), whole.dim()) != cut) return as_it_is(call);
  const std::int64_t all = whole.size(cut);
  const auto bound = [&](std::size_t i, std::int64_t missing) {
    const std::int64_t given = call[i].isNone() ? missing : call[i].toInt();
    return std::clamp<std::int64_t>(given < 0 ? given + all : given, 0, all);
  };
  const std::int64_t begin = bound(2, 0), length = bound(3, all) - begin, block = block_of(call);
  const auto blocks = blocks_in(length, block);
  if (!blocks || begin % block != 0 || call[4].toInt() != 1) return false;
  const int ranks = call.axis()->size();
  return call.give(call.part(0).values.narrow(cut, begin / ranks, length / ranks), AxisPlacement::shard(cut, *blocks));
}

// (self, a size or several, dim): into as many blocks each.
bool split(ShardedCall& call) {
  const std::int64_t dim = from_front(call[call.size() - 1].toInt(), call.tensor(0).dim());
  if (!call.sharded(0) || dim != cut_of(call)) return as_it_is(call);
  const std::int64_t ranks = call.axis()->size();
  Sizes sizes = call[1].isInt() ? Sizes{call[1].toInt()} : call[1].toIntVector();
  if (sizes.empty() || sizes.front() <= 0) return false;
  if (call[1].isInt() && call.tensor(0).size(dim) % sizes.front() != 0) return false;
  const auto blocks = blocks_in(sizes.front(), block_of(call));
  if (!blocks || std::ranges::count(sizes, sizes.front()) != std::ssize(sizes)) return false;
  for (std::int64_t& size : sizes) size /= ranks;
  const c10::IValue part = call[1].isInt() ? c10::IValue(sizes.front()) : c10::IValue(sizes);
  return call.give(call.on_parts({{1, part}}), {AxisPlacement::shard(dim, *blocks)});
}

bool repeat(ShardedCall& call) {
  if (!call.sharded(0)) return as_it_is(call);
  const Sizes times = call[1].toIntVector();
  const std::int64_t dim = cut_of(call) + static_cast<std::int64_t>(times.size()) - call.tensor(0).dim();
  return times[index_of(dim)] == 1 && call.give(call.on_parts(), {moved(call, dim)});
}

// Gradients of views: sizes of the whole are among the arguments. (grad_output, sizes, dim, start, end, step).
bool slice_backward(ShardedCall& call) {
  if (!call.sharded(0)) return as_it_is(call);
  Sizes sizes = call[1].toIntVector();
  const std::int64_t cut = cut_of(call), all = sizes[index_of(cut)], ranks = call.axis()->size();
  sizes[index_of(cut)] /= ranks;
  if (from_front(call[2].toInt(), static_cast<std::int64_t>(sizes.size())) != cut)
    return call.give(call.on_parts({{1, sizes}}), {call.part(0).placement});
  const std::int64_t block = block_of(call), begin = call[3].toInt() + (call[3].toInt() < 0 ? all : 0),
                     end = begin + call.tensor(0).size(cut);
  const auto blocks = blocks_in(all, block);
  if (!blocks || begin < 0 || begin % block != 0 || call[5].toInt() != 1) return false;
  return call.give(call.on_parts({{1, sizes}, {3, begin / ranks}, {4, end / ranks}}),
                   {AxisPlacement::shard(cut, *blocks)});
}

bool select_backward(ShardedCall& call) {
  if (!call.sharded(0)) return as_it_is(call);
  Sizes sizes = call[1].toIntVector();
  const std::int64_t dim = from_front(call[2].toInt(), static_cast<std::int64_t>(sizes.size()));
  const std::int64_t cut = cut_of(call) + (dim <= cut_of(call) ? 1 : 0);
  sizes[index_of(cut)] /= call.axis()->size();
  return call.give(call.on_parts({{1, sizes}}), {moved(call, cut)});
}

const TensorPart& first_cut(const ShardedCall& call) {
  return *std::ranges::find_if(call.parts(0), [](const TensorPart& part) { return part.placement.sharded(); });
}

// What cat() takes beside any tensors, as the beginning of a list that has nothing yet.
bool has_nothing(const TensorPart& part) {
  return part.values.dim() == 1 && part.values.numel() == 0;
}

// Of tensors that are cut alike, and of what all ranks have this one's part.
std::optional<c10::List<at::Tensor>> alike(const ShardedCall& call) {
  const AxisPlacement& placement = first_cut(call).placement;
  c10::List<at::Tensor> list;
  for (const TensorPart& part : call.parts(0)) {
    if (has_nothing(part)) {
      list.push_back(part.values);
      continue;
    }
    if (part.placement.sharded() && !(part.placement == placement)) return {};
    if (!part.placement.sharded() && part.values.dim() <= placement.dim) return {};
    list.push_back(part.placement.sharded() ? part.values : call.axis()->own(part.values, placement.cut()));
  }
  return list;
}

// Along the dimension that is cut: all their blocks, which are of one length.
bool cat_blocks(ShardedCall& call, std::int64_t cut) {
  const std::int64_t ranks = call.axis()->size();
  const TensorPart& first = first_cut(call);
  const std::int64_t block = first.values.size(cut) * ranks / first.placement.blocks;
  std::int64_t all = 0;
  c10::List<at::Tensor> list;
  for (const TensorPart& part : call.parts(0)) {
    if (has_nothing(part)) continue;
    const bool here = part.placement.sharded();
    if (part.values.dim() <= cut || (here && part.placement.dim != cut)) return false;
    const auto blocks = blocks_in(part.values.size(cut) * (here ? ranks : 1), block);
    if (!blocks || (here && part.placement.blocks != *blocks)) return false;
    all += *blocks;
    list.push_back(here ? part.values : call.axis()->own(part.values, {cut, *blocks}));
  }
  return call.give(call.on_parts({{0, list}}), {AxisPlacement::shard(cut, all)});
}

bool cat(ShardedCall& call) {
  const TensorPart& first = first_cut(call);
  const std::int64_t dim = from_front(call[1].toInt(), first.values.dim());
  if (dim == first.placement.dim) return cat_blocks(call, dim);
  const auto list = alike(call);
  return list && call.give(call.on_parts({{0, *list}}), {first.placement});
}

bool stack(ShardedCall& call) {
  const auto list = alike(call);
  if (!list) return false;
  const AxisPlacement placement = first_cut(call).placement;
  const std::int64_t dim = from_front(call[1].toInt(), list->get(0).dim() + 1);
  return call.give(call.on_parts({{0, *list}}), {placement.at(placement.dim + (dim <= placement.dim ? 1 : 0))});
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

constexpr unsigned kAny = ShardedRule::partial | ShardedRule::blocks;
constexpr NamedShardedRule kViews[] = {
    {"alias", {as_it_is, kAny}},
    {"detach", {as_it_is, kAny}},
    {"clone", {as_it_is, kAny}},
    {"t", {t, kAny}},
    {"transpose", {transpose, kAny}},
    {"permute", {permute, kAny}},
    {"unsqueeze", {unsqueeze, kAny}},
    {"squeeze", {squeeze, kAny}},
    {"view", {view, kAny}},
    {"_unsafe_view", {view, kAny}},
    {"_reshape_alias", {view, kAny}},
    {"expand", {expand, kAny}},
    {"select", {select_or_unbind, kAny}},
    {"slice", {slice, kAny}},
    {"split", {split, kAny}},
    {"split_with_sizes", {split, kAny}},
    {"unsafe_split", {split, kAny}},
    {"unsafe_split_with_sizes", {split, kAny}},
    {"unbind", {select_or_unbind, kAny}},
    {"repeat", {repeat, kAny}},
    {"slice_backward", {slice_backward, kAny}},
    {"select_backward", {select_backward, kAny}},
    {"cat", {cat, ShardedRule::blocks}},
    {"stack", {stack, ShardedRule::blocks}},
    {"index_select", {along_another, ShardedRule::blocks}},
    {"cumsum", {along_another, ShardedRule::blocks}},
    {"tril", {triangle, ShardedRule::blocks}},
    {"triu", {triangle, ShardedRule::blocks}},
};

}  // namespace

std::span<const NamedShardedRule> views() {
  return kViews;
}

}  // namespace zero::sharded_rules
