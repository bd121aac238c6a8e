// Takes the module's tensors over.
#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include "engine/impl.h"
#include "state/deferred_tensors.h"
#include "state/dispatch_hook.h"
#include "state/for_unit.h"

namespace zero {

// Rank 0's values win.
void Engine::Impl::broadcast(const at::Tensor& values, int unit) {
  const View view =
      view_of(values.mutable_data_ptr(), Dtype::u8, 0, static_cast<std::int64_t>(values.nbytes()), values.device());
  exchange_.run({Exchange::Kind::setup, unit, view.count, [view](const Groups& groups) {
                   if (view.count > 0) groups.along(Axis::data).broadcast(view, 0).wait();
                 }});
}

// Returns rank 0's values of what is replicated, for when nothing can fail any more.
std::vector<deferred_tensors::Settling> Engine::Impl::adopt_units(const std::vector<Replicated>& replicated) {
  const dispatch_hook::Off off;
  at::NoGradGuard no_grad;
  for (auto& unit : units_) {
    unit->owner = this;
    if (unit->layout().length() == 0) continue;
    Buffer values = unit->flatten();
    broadcast(values.tensor(), unit->index());
    if (unit->layout().trainable()) updater_.prepare(*unit, values.tensor().data_ptr());
    for_unit(*unit, "the parameters", [&] { unit->adopt(std::move(values), updater_.staging()); });
  }
  std::vector<deferred_tensors::Settling> buffers;
  for (const Replicated& each : replicated) {
    const at::Tensor values = copy_of(each.tensor.detach());
    broadcast(values, -1);
    buffers.emplace_back(each.tensor, values);
  }
  return buffers;
}

// Row-major.
at::Tensor Engine::Impl::copy_of(const at::Tensor& tensor) const {
  if (!deferred_tensors::deferred(tensor)) return tensor.clone(at::MemoryFormat::Contiguous);
  at::Tensor copy = at::empty(tensor.sizes(), at::TensorOptions().dtype(tensor.dtype()).device(tensor.device()));
  if (exchange_.rank() == 0) deferred_tensors::compute_into(tensor, copy);
  return copy;
}

}  // namespace zero
