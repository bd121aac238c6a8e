// Products of matrices, alone and in batches: of columns each rank makes its own, of what is cut along the dimension
// that is summed over an addend (Megatron-LM, section 3).
#include <ATen/Functions.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "parallel/sharded_call.h"

namespace zero::sharded_rules {
namespace {

// The dimensions of the last two matrices: rows of the first, what is summed over, and columns of the second.
enum class Cut : std::uint8_t { none, batch, rows, inner, columns };

// Of an operand of two or three dimensions.
Cut cut_of(const TensorPart& part, bool first) {
  if (!part.placement.sharded()) return Cut::none;
  const std::int64_t from_behind = part.values.dim() - 1 - part.placement.dim;
  if (from_behind > 1) return Cut::batch;
  return (from_behind == 0) == first ? Cut::inner : first ? Cut::rows : Cut::columns;
}

struct Product {
  at::Tensor a, b;
  Cut cut;  // of what comes of it; along `inner` an addend comes
  std::int64_t blocks = 1;

  AxisPlacement placement() const;
};

// What is cut in one alone is taken in part of the other. None: they do not fit together.
std::optional<Product> product_of(const ShardedCall& call, std::size_t i) {
  const TensorPart &a = call.part(i), &b = call.part(i + 1);
  const Cut of_a = cut_of(a, true), of_b = cut_of(b, false);
  if (of_a == Cut::rows && of_b == Cut::columns)
    return Product{call.axis()->gather(a.values, a.placement.cut()), b.values, of_b, b.placement.blocks};
  const bool both = of_a != Cut::none && of_b != Cut::none;
  if (both && (of_a != of_b || a.placement.blocks != b.placement.blocks)) return {};
  const Cut cut = of_a != Cut::none ? of_a : of_b;
  const std::int64_t blocks = std::max(a.placement.blocks, b.placement.blocks);
  Product product{a.values, b.values, cut, blocks};
  const std::int64_t last = a.values.dim() - 1;
  const auto other = [&](const TensorPart& part, std::int64_t dim) {
    return part.placement.sharded() ? part.values : call.axis()->own(part.values, {dim, blocks});
  };
  if (cut == Cut::batch) product = {other(a, 0), other(b, 0), cut, blocks};
  if (cut == Cut::inner) product = {other(a, last), other(b, last - 1), cut, blocks};
  return product;
}

AxisPlacement Product::placement() const {
  const std::int64_t dims = a.dim();
  switch (cut) {
    case Cut::batch: return AxisPlacement::shard(0, blocks);
    case Cut::rows: return AxisPlacement::shard(dims - 2, blocks);
    case Cut::columns: return AxisPlacement::shard(dims - 1, blocks);
    default: return AxisPlacement::partial();
  }
}

// Tile by tile; argument `first` and the next one are multiplied, and where anything is added argument 0 is that.
std::vector<at::Tensor> in_tiles(const ShardedCall& call, const Product& product, std::size_t first,
                                 const std::vector<at::Tensor>& added) {
  const int tiles = call.axis()->tiles();
  const std::int64_t last = product.a.dim() - 1;
  const auto of = [&](const at::Tensor& operand, bool cut, std::int64_t dim) {
    return cut ? call.axis()->tiles_of(operand, {dim, product.blocks})
               : std::vector<at::Tensor>(static_cast<std::size_t>(tiles), operand);
  };
  const bool inner = product.cut == Cut::inner;
  const std::vector<at::Tensor> a = of(product.a, inner || product.cut == Cut::rows, inner ? last : last - 1);
  const std::vector<at::Tensor> b = of(product.b, inner || product.cut == Cut::columns, inner ? last - 1 : last);
  std::vector<at::Tensor> results;
  for (std::size_t i = 0; i < a.size(); ++i) {
    ShardedCall::Changed changed{{first, a[i]}, {first + 1, b[i]}};
    if (!added.empty()) changed.emplace_back(0, added[i]);
    results.push_back(call.on_parts(changed).front().toTensor());
  }
  return results;
}

bool multiply_in_tiles(ShardedCall& call, const Product& product) {
  std::vector<at::Tensor> tiles = in_tiles(call, product, 0, {});
  if (product.cut == Cut::inner) return call.give(call.axis()->sum_of_tiles(std::move(tiles)), {});
  const AxisPlacement placement = product.placement();
  return call.give(TensorAxis::joined(tiles, placement.cut()), placement);
}

// Where the tiles divide what is cut.
bool is_in_tiles(const ShardedCall& call, const Product& product) {
  if (!call.axis()->in_tiles() || product.cut == Cut::batch) return false;
  const std::int64_t dims = product.a.dim();
  const std::int64_t size = product.cut == Cut::columns
                                ? product.b.size(dims - 1)
                                : product.a.size(product.cut == Cut::inner ? dims - 1 : dims - 2);
  return size % (product.blocks * call.axis()->tiles()) == 0;
}

bool multiply(ShardedCall& call) {
  const auto product = product_of(call, 0);
  if (!product) return false;
  if (is_in_tiles(call, *product)) return multiply_in_tiles(call, *product);
  return call.give(call.on_parts({{0, product->a}, {1, product->b}}), {product->placement()});
}

// What is added is added to the sum of the tiles, as that is one operator of its own there.
bool add_in_tiles(ShardedCall& call, const Product& product, const AxisPlacement& placement) {
  const TensorPart& added = call.part(0);
  const int beta = call.find("beta");
  if (placement.is_partial()) {
    if (added.placement.sharded()) return false;
    const std::vector<at::Tensor> none(static_cast<std::size_t>(call.axis()->tiles()), at::zeros_like(added.values));
    const at::Tensor total = call.axis()->sum_of_tiles(in_tiles(call, product, 1, none));
    return call.give(total.add(added.values, call[static_cast<std::size_t>(beta)].toScalar()), {});
  }
  const std::int64_t dim = placement.dim - (product.a.dim() - added.values.dim());
  const TensorCut cut{dim, placement.blocks};
  if (added.placement.sharded() && !(added.placement.cut() == cut)) return false;
  const bool broadcast = !added.placement.sharded() && (dim < 0 || added.values.size(dim) == 1);
  const at::Tensor own = added.placement.sharded() || broadcast ? added.values : call.own(0, cut);
  const auto tiles = static_cast<std::size_t>(call.axis()->tiles());
  const std::vector<at::Tensor> each =
      broadcast ? std::vector<at::Tensor>(tiles, own) : call.axis()->tiles_of(own, cut);
  return call.give(TensorAxis::joined(in_tiles(call, product, 1, each), placement.cut()), placement);
}

// The first argument is added, times a number: once, where addends come of the product.
bool multiply_and_add(ShardedCall& call) {
  const auto product = product_of(call, 1);
  if (!product || product->cut == Cut::none) return false;
  const std::int64_t dims = product->a.dim();
  const AxisPlacement placement = product->placement();
  const TensorPart& added = call.part(0);
  if (is_in_tiles(call, *product)) return add_in_tiles(call, *product, placement);
  if (placement.is_partial()) {
    if (added.placement.sharded() || call.axis()->rank() == 0)
      return !added.placement.sharded() && call.give(call.on_parts({{1, product->a}, {2, product->b}}), {placement});
    return call.give(call.on_parts({{0, at::zeros_like(added.values)}, {1, product->a}, {2, product->b}}), {placement});
  }
  const std::int64_t dim = placement.dim - (dims - added.values.dim());
  const TensorCut cut{dim, placement.blocks};
  if (added.placement.sharded() && !(added.placement.cut() == cut)) return false;
  const bool whole = !added.placement.sharded() && dim >= 0 && added.values.size(dim) != 1;
  return call.give(call.on_parts({{0, whole ? call.own(0, cut) : added.values}, {1, product->a}, {2, product->b}}),
                   {placement});
}

// Convolutions whose kernels are cut along their outputs or their inputs, in one group.
bool convolution(ShardedCall& call) {
  if (call.axis()->in_tiles()) return false;
  const TensorPart &input = call.part(0), &weight = call.part(1);
  if (call[8].toInt() != 1) return false;  // groups
  const bool transposed = call[6].toBool();
  const std::int64_t outputs = transposed ? 1 : 0, inputs = 1 - outputs, channels = 1;
  const bool bias = call.has_tensor(2);
  const bool by_outputs = weight.placement == AxisPlacement::shard(outputs) && !input.placement.sharded();
  const bool by_batch = input.placement == AxisPlacement::shard(0) && !weight.placement.sharded();
  if (by_batch) return !(bias && call.sharded(2)) && call.give(call.on_parts(), {AxisPlacement::shard(0)});
  if (by_outputs) {
    if (bias && !call.sharded(2))
      return call.give(call.on_parts({{2, call.own(2, {0})}}), {AxisPlacement::shard(channels)});
    return call.give(call.on_parts(), {AxisPlacement::shard(channels)});
  }
  const bool by_inputs =
      weight.placement == AxisPlacement::shard(inputs) || input.placement == AxisPlacement::shard(channels);
  const bool fits = (!weight.placement.sharded() || weight.placement.dim == inputs) &&
                    (!input.placement.sharded() || input.placement.dim == channels);
  if (!by_inputs || !fits || (bias && call.sharded(2))) return false;
  ShardedCall::Changed changed;
  if (!input.placement.sharded()) changed.emplace_back(0, call.own(0, {channels}));
  if (!weight.placement.sharded()) changed.emplace_back(1, call.own(1, {inputs}));
  if (bias && call.axis()->rank() != 0) changed.emplace_back(2, at::zeros_like(call.part(2).values));
  return call.give(call.on_parts(changed), {AxisPlacement::partial()});
}

// (grad_output, input, weight, ...): the gradients of the last two, and of the bias.
bool convolution_backward(ShardedCall& call) {
  if (call.axis()->in_tiles()) return false;
  const TensorPart &grad = call.part(0), &input = call.part(1), &weight = call.part(2);
  if (call[9].toInt() != 1) return false;  // groups
  const bool transposed = call[7].toBool();
  const std::int64_t outputs = transposed ? 1 : 0, inputs = 1 - outputs, channels = 1;
  const auto shard = [](std::int64_t dim) { return AxisPlacement::shard(dim); };
  if (grad.placement == shard(0) && input.placement == shard(0) && !weight.placement.sharded())
    return call.give(call.on_parts(), {shard(0), AxisPlacement::partial(), AxisPlacement::partial()});
  if (weight.placement == shard(outputs) && !input.placement.sharded()) {
    if (grad.placement.sharded() && grad.placement.dim != channels) return false;
    ShardedCall::Changed changed;
    if (!grad.placement.sharded()) changed.emplace_back(0, call.own(0, {channels}));
    if (call[3].isIntList()) {
      std::vector<std::int64_t> sizes = call[3].toIntVector();
      sizes[0] /= call.axis()->size();
      changed.emplace_back(3, sizes);
    }
    return call.give(call.on_parts(changed), {AxisPlacement::partial(), shard(outputs), shard(0)});
  }
  if (weight.placement == shard(inputs) && input.placement == shard(channels) && !grad.placement.sharded())
    return call.give(call.on_parts(), {shard(channels), shard(inputs), AxisPlacement()});
  return false;
}

constexpr NamedShardedRule kProducts[] = {
    {"mm", {multiply, ShardedRule::blocks}},
    {"bmm", {multiply, ShardedRule::blocks}},
    {"addmm", {multiply_and_add, ShardedRule::blocks}},
    {"baddbmm", {multiply_and_add, ShardedRule::blocks}},
    {"convolution", {convolution}},
    {"convolution_backward", {convolution_backward}},
};

}  // namespace

std::span<const NamedShardedRule> products() {
  return kProducts;
}

}  // namespace zero::sharded_rules
