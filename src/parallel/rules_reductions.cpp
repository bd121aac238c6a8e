// Operators along some dimensions: on parts where these are not cut, and by addends, or by what the ranks tell each
// other, where one of them is.
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <vector>

#include "parallel/dimensions.h"
#include "parallel/sharded_call.h"

namespace zero::sharded_rules {
namespace {

// The dimensions of a call that are reduced, and whether they stay, of size 1.
struct Reduced {
  std::vector<std::int64_t> dims;
  bool keeps = false;

  bool has(std::int64_t dim) const { return std::ranges::count(dims, dim) > 0; }
  // Where a dimension is that is not one of them.
  AxisPlacement behind(const AxisPlacement& placement) const {
    const std::int64_t dim = placement.dim;
    const auto before = std::ranges::count_if(dims, [&](std::int64_t each) { return each < dim; });
    return placement.at(keeps ? dim : dim - before);
  }
};

Reduced reduced_by(const ShardedCall& call) {
  const int dim = call.find("dim"), keeps = call.find("keepdim");
  return {dims_of(dim < 0 ? c10::IValue() : call[static_cast<std::size_t>(dim)], call.tensor(0).dim()),
          keeps >= 0 && call[static_cast<std::size_t>(keeps)].toBool()};
}

// Tile by tile: how a sum of columns is added up may depend on how many there are.
std::vector<c10::IValue> by_tile(const ShardedCall& call) {
  const TensorAxis& axis = *call.axis();
  if (!axis.in_tiles() || axis.tiles() == 1) return call.on_parts();
  const AxisPlacement& placement = call.part(0).placement;
  const AxisPlacement behind = reduced_by(call).behind(placement);
  std::vector<std::vector<at::Tensor>> tiles;
  for (const at::Tensor& tile : axis.tiles_of(call.part(0).values, placement.cut())) {
    const std::vector<c10::IValue> results = call.on_parts({{0, tile}});
    tiles.resize(results.size());
    for (std::size_t i = 0; i < results.size(); ++i) tiles[i].push_back(results[i].toTensor());
  }
  std::vector<c10::IValue> all;
  for (const std::vector<at::Tensor>& each : tiles) all.emplace_back(TensorAxis::joined(each, behind.cut()));
  return all;
}

// Along others than the one that is cut.
bool along_others(ShardedCall& call) {
  for (std::size_t i = 1; i < call.size(); ++i)
    if (call.sharded(i)) return false;
  if (call.find("dim") < 0) return false;
  const Reduced reduced = reduced_by(call);
  const AxisPlacement& placement = call.part(0).placement;
  return !reduced.has(placement.dim) && call.give(by_tile(call), {reduced.behind(placement)});
}

// What the operator gives of each tile, along dimensions of which one is cut.
std::vector<at::Tensor> each_tiles(const ShardedCall& call) {
  std::vector<at::Tensor> sums;
  for (const at::Tensor& tile : call.axis()->tiles_of(call.part(0).values, call.part(0).placement.cut()))
    sums.push_back(call.on_parts({{0, tile}}).front().toTensor());
  return sums;
}

// What is added up in integers is summed whole.
bool sum(ShardedCall& call) {
  const TensorPart& part = call.part(0);
  const Reduced reduced = reduced_by(call);
  if (part.placement.sharded() && !reduced.has(part.placement.dim))
    return call.give(by_tile(call), {reduced.behind(part.placement)});
  const c10::IValue dtype = call[static_cast<std::size_t>(call.find("dtype"))];
  const at::ScalarType added_in = dtype.isNone() ? part.values.scalar_type() : dtype.toScalarType();
  if (!at::isFloatingType(added_in)) return false;
  if (call.axis()->in_tiles()) return call.give(call.axis()->sum_of_tiles(each_tiles(call)), {});
  return call.give(call.on_parts(), {AxisPlacement::partial()});
}

// Parts are alike in length, and so are tiles: the mean is that of their means.
bool mean(ShardedCall& call) {
  const TensorPart& part = call.part(0);
  const Reduced reduced = reduced_by(call);
  if (!reduced.has(part.placement.dim)) return call.give(by_tile(call), {reduced.behind(part.placement)});
  if (call.axis()->in_tiles()) {
    std::vector<at::Tensor> means = each_tiles(call);
    const std::int64_t count = call.axis()->size() * std::ssize(means);
    return call.give(call.axis()->sum_of_tiles(std::move(means)).div(count), {});
  }
  std::vector<c10::IValue> results = call.on_parts();
  return call.give(results.front().toTensor().div(call.axis()->size()), AxisPlacement::partial());
}

// All tensors cut alike, and not along the dimension of the operator, the first number among the arguments.
bool softmax_along_another(const ShardedCall& call, std::size_t dim) {
  const std::int64_t along = from_front(call[dim].toInt(), call.tensor(0).dim());
  for (std::size_t i = 0; i < dim; ++i)
    if (!(call.part(i).placement == call.part(0).placement)) return false;
  return along != call.part(0).placement.dim;
}

// In which it is computed, to be rounded once.
at::Tensor wide(const at::Tensor& values) {
  return values.scalar_type() == at::kDouble ? values : values.to(at::kFloat);
}

at::Tensor sum_over_ranks(const ShardedCall& call, const at::Tensor& values) {
  const std::int64_t dim = call.part(0).placement.dim;
  std::vector<at::Tensor> sums;
  for (const at::Tensor& tile : call.axis()->tiles_of(values, call.part(0).placement.cut()))
    sums.push_back(tile.sum(dim, /*keepdim=*/true));
  return call.axis()->sum_of_tiles(std::move(sums));
}

// Of the exponentials. Along other dimensions a piece after the other, of which each takes memory of its own.
at::Tensor sum_of_exponentials(const ShardedCall& call, const at::Tensor& values) {
  constexpr std::int64_t kPieces = 16;
  if (call.part(0).placement.dim == 0) return sum_over_ranks(call, values.exp());
  std::vector<at::Tensor> sums;
  for (const at::Tensor& tile : call.axis()->tiles_of(values, call.part(0).placement.cut())) {
    std::vector<at::Tensor> pieces;
    for (const at::Tensor& piece : tile.chunk(kPieces, 0))
      pieces.push_back(piece.exp().sum(call.part(0).placement.dim, /*keepdim=*/true));
    sums.push_back(at::cat(pieces));
  }
  return call.axis()->sum_of_tiles(std::move(sums));
}

// Over what is cut, as a vocabulary is: the ranks tell each other the largest and the sum of each row (Megatron-LM,
// section 3).
at::Tensor log_softmax_over_ranks(const ShardedCall& call) {
  const std::int64_t dim = call.part(0).placement.dim;
  const at::Tensor values = wide(call.part(0).values);
  const at::Tensor shifted = values - call.axis()->largest(values.amax(dim, /*keepdim=*/true));
  return shifted.sub_(sum_of_exponentials(call, shifted).log_());
}

bool log_softmax(ShardedCall& call) {
  if (softmax_along_another(call, 1)) return call.give(call.on_parts(), {call.part(0).placement});
  if (call[2].toBool() || !call.sharded(0)) return false;
  return call.give(log_softmax_over_ranks(call).to(call.part(0).values.scalar_type()), call.part(0).placement);
}

bool softmax(ShardedCall& call) {
  if (softmax_along_another(call, 1)) return call.give(call.on_parts(), {call.part(0).placement});
  if (call[2].toBool() || !call.sharded(0)) return false;
  return call.give(log_softmax_over_ranks(call).exp().to(call.part(0).values.scalar_type()), call.part(0).placement);
}

// What attention by products has in the place of softmax(): rows without any number are 0.
bool safe_softmax(ShardedCall& call) {
  return softmax_along_another(call, 1) && call.give(call.on_parts(), {call.part(0).placement});
}

// (grad_output, output, dim, input_dtype).
bool same_parts_of_both(const ShardedCall& call) {
  return call.sharded(0) && call.part(0).placement == call.part(1).placement &&
         call.part(0).values.scalar_type() == call[3].toScalarType();
}

bool log_softmax_backward(ShardedCall& call) {
  if (softmax_along_another(call, 2)) return call.give(call.on_parts(), {call.part(0).placement});
  if (!same_parts_of_both(call)) return false;
  const at::Tensor grad = wide(call.part(0).values), output = wide(call.part(1).values);
  const at::Tensor result = output.exp().mul_(sum_over_ranks(call, grad)).neg_().add_(grad);
  return call.give(result.to(call.part(0).values.scalar_type()), call.part(0).placement);
}

bool softmax_backward(ShardedCall& call) {
  if (softmax_along_another(call, 2)) return call.give(call.on_parts(), {call.part(0).placement});
  if (!same_parts_of_both(call)) return false;
  const at::Tensor output = wide(call.part(1).values), product = wide(call.part(0).values) * output;
  const at::Tensor result = product.sub_(output * sum_over_ranks(call, product));
  return call.give(result.to(call.part(0).values.scalar_type()), call.part(0).placement);
}

constexpr NamedShardedRule kReductions[] = {
    {"sum", {sum, ShardedRule::partial | ShardedRule::blocks}},
    {"mean", {mean, ShardedRule::blocks}},
    {"amax", {along_others, ShardedRule::blocks}},
    {"amin", {along_others, ShardedRule::blocks}},
    {"any", {along_others, ShardedRule::blocks}},
    {"all", {along_others, ShardedRule::blocks}},
    {"prod", {along_others, ShardedRule::blocks}},
    {"var", {along_others, ShardedRule::blocks}},
    {"std", {along_others, ShardedRule::blocks}},
    {"max", {along_others, ShardedRule::blocks}},
    {"min", {along_others, ShardedRule::blocks}},
    {"argmax", {along_others, ShardedRule::blocks}},
    {"argmin", {along_others, ShardedRule::blocks}},
    {"logsumexp", {along_others, ShardedRule::blocks}},
    {"linalg_vector_norm", {along_others, ShardedRule::blocks}},
    {"_softmax", {softmax, ShardedRule::blocks}},
    {"_safe_softmax", {safe_softmax, ShardedRule::blocks}},
    {"_log_softmax", {log_softmax, ShardedRule::blocks}},
    {"_softmax_backward_data", {softmax_backward, ShardedRule::blocks}},
    {"_log_softmax_backward_data", {log_softmax_backward, ShardedRule::blocks}},
};

}  // namespace

std::span<const NamedShardedRule> reductions() {
  return kReductions;
}

}  // namespace zero::sharded_rules
