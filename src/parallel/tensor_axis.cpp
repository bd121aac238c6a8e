#include "parallel/tensor_axis.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <utility>
#include <vector>

#include "comm/decorators.h"
#include "device/device.h"
#include "device/torch/dtypes.h"
#include "parallel/sharded_call.h"

namespace zero {
namespace {

// Of the meta device are those of imagined ranks (automatic_cuts.cpp), which read nothing.
View memory_of(const at::Tensor& values, Dtype dtype, std::int64_t count) {
  static char nowhere;
  return view_of(values.is_meta() ? &nowhere : values.mutable_data_ptr(), dtype, 0, count, values.device());
}

// As bytes where it is of a type that the ranks do not add.
View bytes_of(const at::Tensor& values) {
  return memory_of(values, Dtype::u8, static_cast<std::int64_t>(values.nbytes()));
}

at::Tensor by_block(const at::Tensor& values, const TensorCut& cut) {
  return values.unflatten(cut.dim, {cut.blocks, values.size(cut.dim) / cut.blocks});
}

// The blocks' parts, dimensions `dim` and the next one, as one dimension. What has to be copied keeps the order of its
// dimensions in memory, as a part of one block does: kernels go by it.
at::Tensor of_blocks(const at::Tensor& parts, std::int64_t dim) {
  std::vector<std::int64_t> order(static_cast<std::size_t>(parts.dim()));
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, std::greater<>(),
                           [&](std::int64_t i) { return parts.stride(i == dim ? dim + 1 : i); });
  std::erase(order, dim + 1);
  order.insert(std::ranges::find(order, dim) + 1, dim + 1);
  const std::int64_t place = std::ranges::find(order, dim) - order.begin();
  const at::Tensor flat = parts.permute(order).flatten(place, place + 1);
  std::erase(order, dim + 1);
  std::vector<std::int64_t> back(order.size());
  for (std::size_t i = 0; i < order.size(); ++i)
    back[static_cast<std::size_t>(order[i] - (order[i] > dim ? 1 : 0))] = static_cast<std::int64_t>(i);
  return flat.permute(back);
}

Communicator metered_by(const std::shared_ptr<TrafficMeter>& meter, const Communicator& group) {
  return meter == nullptr ? group : Communicator(metered(group.impl(), meter));
}

}  // namespace

TensorAxis::TensorAxis(const Communicator& group, const Communicator& mesh, const std::shared_ptr<TrafficMeter>& meter,
                       TensorAxisOptions options, Device* device)
    : words_(group),
      on_host_(metered_by(meter, group)),
      on_device_(device == nullptr ? on_host_ : metered_by(meter, on_device(group, *device))),
      device_(device),
      mesh_(mesh.impl()),
      options_(options) {
  run_sharded_calls();
}

const Communicator& TensorAxis::group_for(const at::Tensor& values) const {
  return values.is_cpu() ? on_host_ : on_device_;
}

void TensorAxis::finish(const at::Tensor& values, Pending operation) const {
  device_ == nullptr || values.is_cpu() ? operation.wait() : device_->follow(std::move(operation));
}

at::Tensor TensorAxis::gather(const at::Tensor& part, const TensorCut& cut) const {
  const auto [dim, blocks] = cut;
  if (blocks > 1) return gather(by_block(part, cut), {dim + 1}).flatten(dim, dim + 1);
  if (size() == 1) return part.clone(at::MemoryFormat::Contiguous);
  const at::Tensor mine = part.contiguous();
  std::vector<std::int64_t> sizes = mine.sizes().vec();
  sizes.insert(sizes.begin(), size());
  const at::Tensor all = at::empty(sizes, mine.options());
  if (mine.numel() > 0) finish(mine, group_for(mine).all_gather(bytes_of(mine), bytes_of(all)));
  return dim == 0 ? all.flatten(0, 1) : at::cat(all.unbind(), dim);
}

at::Tensor TensorAxis::sum(const at::Tensor& addend) const {
  at::Tensor total = addend.clone(at::MemoryFormat::Contiguous);
  sum_(total);
  return total;
}

void TensorAxis::sum_(const at::Tensor& addend) const {
  const Dtype dtype = *any_dtype_of(addend.scalar_type());
  if (addend.numel() > 0 && size() > 1)
    finish(addend, group_for(addend).all_reduce(memory_of(addend, dtype, addend.numel())));
}

at::Tensor TensorAxis::sum_own(const at::Tensor& addend, std::int64_t dim) const {
  const at::Tensor parts = at::stack(addend.chunk(size(), dim));  // one behind the other, by rank
  const Dtype dtype = *dtype_of(parts.scalar_type());
  const at::Tensor own = at::empty(parts.sizes().slice(1), parts.options().dtype(scalar_type(accumulation(dtype))));
  const View all = memory_of(parts, dtype, parts.numel());
  if (own.numel() > 0)
    finish(parts, group_for(parts).reduce_scatter(all, memory_of(own, accumulation(dtype), own.numel())));
  return own.to(parts.scalar_type());
}

// Pairs, and pairs of pairs: as the ranks' sums go on.
at::Tensor TensorAxis::sum_of_tiles(std::vector<at::Tensor> mine) const {
  const at::ScalarType dtype = mine.front().scalar_type();
  const bool narrow = dtype == at::kBFloat16 || dtype == at::kHalf;
  if (narrow)
    for (at::Tensor& tile : mine) tile = tile.to(at::kFloat);
  for (std::size_t pair = 1; pair < mine.size(); pair *= 2)
    for (std::size_t i = 0; i + pair < mine.size(); i += 2 * pair) mine[i] = mine[i] + mine[i + pair];
  const at::Tensor total = mine.front().contiguous();
  sum_(total);
  return narrow ? total.to(dtype) : total;
}

at::Tensor TensorAxis::largest(const at::Tensor& values) const {
  return gather(values.unsqueeze(0), {0}).amax(0);
}

at::Tensor TensorAxis::own(const at::Tensor& whole, const TensorCut& cut) const {
  const auto [dim, blocks] = cut;
  if (blocks > 1) return of_blocks(own(by_block(whole, cut), {dim + 1}), dim);
  const std::int64_t each = whole.size(dim) / size();
  return whole.narrow(dim, rank() * each, each);
}

std::vector<at::Tensor> TensorAxis::tiles_of(const at::Tensor& part, const TensorCut& cut) const {
  if (part.size(cut.dim) % (cut.blocks * tiles()) != 0) return {part};
  if (cut.blocks == 1) return part.chunk(tiles(), cut.dim);
  std::vector<at::Tensor> all = by_block(part, cut).chunk(tiles(), cut.dim + 1);
  for (at::Tensor& tile : all) tile = of_blocks(tile, cut.dim);
  return all;
}

at::Tensor TensorAxis::joined(const std::vector<at::Tensor>& tiles, const TensorCut& cut) {
  if (cut.blocks == 1) return at::cat(tiles, cut.dim);
  std::vector<at::Tensor> all;
  for (const at::Tensor& tile : tiles) all.push_back(by_block(tile, cut));
  return at::cat(all, cut.dim + 1).flatten(cut.dim, cut.dim + 1);
}

void TensorAxis::broadcast(const at::Tensor& values, int from) const {
  if (values.numel() == 0 || size() == 1) return;
  const at::Tensor plain = values.contiguous();
  finish(plain, group_for(plain).broadcast(bytes_of(plain), from));
  if (!plain.is_same(values)) values.copy_(plain);
}

std::vector<std::int64_t> TensorAxis::gather_words(const std::vector<std::int64_t>& words) const {
  const auto count = static_cast<std::int64_t>(words.size());
  std::vector<std::int64_t> all(words.size() * static_cast<std::size_t>(size()));
  words_.all_gather({words.data(), count, Dtype::i64}, {all.data(), size() * count, Dtype::i64}).wait();
  return all;
}

void TensorAxis::add_copy(int count) {
  copies_ += count;
  if (copies_ == 0) writes_.clear();
}

void TensorAxis::wrote(const at::Tensor& part) {
  if (copies_ > 0) ++writes_[part.storage().unsafeGetStorageImpl()];
}

// A storage that has ended may have had the same address: then something is read once more than it need be.
std::int64_t TensorAxis::writes_of(const at::Tensor& part) const {
  const auto found = writes_.find(part.storage().unsafeGetStorageImpl());
  return found == writes_.end() ? 0 : found->second;
}

void TensorAxis::count(const std::string& operator_name, bool in_parts) {
  ++operators_;
  Count& count = counts_[operator_name];
  ++(in_parts ? count.in_parts : count.whole);
}

}  // namespace zero
