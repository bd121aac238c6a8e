// Takes the module's tensors over.
#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <span>

#include "backwards/unwatched.h"
#include "deferred/deferred_tensors.h"
#include "engine/impl.h"
#include "units/for_unit.h"

namespace zero {
namespace {

// By unit: whether all ranks would read its values from the same sources, so that each may read its part.
std::vector<char> read_in_parts(std::span<const std::unique_ptr<Unit>> units, Exchange& exchange) {
  std::vector<char> in_parts(units.size());
  if (std::ranges::none_of(units, [](const auto& unit) { return unit->gathers(); })) return in_parts;
  std::vector<std::int64_t> mine, all(units.size() * static_cast<std::size_t>(exchange.size()));
  for (const auto& unit : units) mine.push_back(unit->sources());
  const auto view = [](auto& words) { return View{words.data(), static_cast<std::int64_t>(words.size()), Dtype::i64}; };
  exchange.run({.kind = Exchange::Kind::setup,
                .count = view(mine).count,
                .run = [&](const Groups& groups) { groups.gather(view(mine), view(all), Axis::data); },
                .lane = Exchange::Lane::control});
  for (std::size_t i = 0; i < units.size(); ++i) {
    in_parts[i] = mine[i] != 0 ? 1 : 0;
    for (std::size_t at = i; at < all.size(); at += units.size())
      if (all[at] != mine[i]) in_parts[i] = 0;
  }
  return in_parts;
}

at::Tensor room_for(const at::Tensor& tensor) {
  return at::empty(tensor.sizes(), at::TensorOptions().dtype(tensor.dtype()).device(tensor.device()));
}

// Of a deferred tensor.
at::Tensor computed(const at::Tensor& tensor) {
  at::Tensor values = room_for(tensor);
  deferred_tensors::compute_into(tensor, values);
  return values;
}

}  // namespace

// Rank 0's values win.
void Engine::Impl::broadcast(const at::Tensor& values, int unit) {
  const View view =
      view_of(values.mutable_data_ptr(), Dtype::u8, 0, static_cast<std::int64_t>(values.nbytes()), values.device());
  exchange_.run({Exchange::Kind::setup, unit, view.count, [view](const Groups& groups) {
                   if (view.count > 0) groups.along(Axis::data).broadcast(view, 0).wait();
                 }});
}

// The unit's values as rank 0 has them; `in_part`: as all have them, this rank's part at rest of what is deferred.
Buffer Engine::Impl::values_of(const Unit& unit, bool in_part) {
  if (!in_part) {
    Buffer values = unit.flatten();
    broadcast(values.tensor(), unit.index());
    return values;
  }
  Buffer values = unit.flatten_part();
  for (std::size_t i = 0; i < unit.parameters().size(); ++i) {
    const Slot& slot = unit.layout().slots()[i];
    if (!deferred_tensors::deferred(unit.parameters()[i]))
      broadcast(values.tensor().narrow(0, slot.begin, slot.numel), unit.index());
  }
  return values;
}

// Returns rank 0's values of what is replicated, and this rank's of what is ignored and not there so far, for when
// nothing can fail any more.
std::vector<deferred_tensors::Settling> Engine::Impl::adopt_units(const Inventory& inventory) {
  const Unwatched unwatched;
  at::NoGradGuard no_grad;
  const std::vector<char> in_parts = read_in_parts(units_, exchange_);
  for (auto& unit : units_) {
    unit->owner = this;
    if (unit->layout().length() == 0) {
      unit->cast();
      continue;
    }
    Buffer values = values_of(*unit, in_parts[static_cast<std::size_t>(unit->index())] != 0);
    if (unit->layout().trainable()) updater_.prepare(*unit, values.tensor().data_ptr());
    for_unit(*unit, "the parameters", [&] { unit->adopt(std::move(values), updater_.staging()); });
  }
  // A rank that could not read its part ends the others' building here.
  if (std::ranges::count(in_parts, 1) > 0)
    exchange_.run(
        {Exchange::Kind::setup, -1, 0, [](const Groups& groups) { groups.along(Axis::data).barrier().wait(); }});
  std::vector<deferred_tensors::Settling> buffers;
  for (const Replicated& each : inventory.replicated) {
    const at::Tensor values = copy_of(each.tensor.detach());
    broadcast(values, -1);
    buffers.emplace_back(each.tensor, values);
  }
  for (const at::Tensor& each : inventory.ignored)
    if (deferred_tensors::deferred(each)) buffers.emplace_back(each, computed(each.detach()));
  return buffers;
}

// Row-major.
at::Tensor Engine::Impl::copy_of(const at::Tensor& tensor) const {
  if (!deferred_tensors::deferred(tensor)) return tensor.clone(at::MemoryFormat::Contiguous);
  return exchange_.rank() == 0 ? computed(tensor) : room_for(tensor);
}

}  // namespace zero
