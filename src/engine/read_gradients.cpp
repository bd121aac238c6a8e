// Gradients between backward and step, for the program.
#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "backwards/unwatched.h"
#include "device/torch/torch_device.h"
#include "engine/impl.h"
#include "zero/error.h"

namespace zero {

void Engine::Impl::check_gradients(const char* call) {
  check_alive();
  check_idle(call);
  heed_emptied();
  gradients_->show();
  if (micro_ < plan_.accumulate())
    throw StateError(rank_text() + ": " + call + " after " + std::to_string(micro_) + " of a step's " +
                         std::to_string(plan_.accumulate()) + " backwards: gradients are not summed over the ranks yet",
                     "call it between the last backward and step()");
  if (plan_[State::gradient].tier != Tier::device)
    throw StateError(
        rank_text() + ": " + call + " with gradients on tier " + std::string(name(plan_[State::gradient].tier)),
        "leave them on the device, or clip by Options::clip");
}

void Engine::Impl::each_gradient_slice(Unit& unit, const std::function<void(const Slot&, GradientSlice)>& use) const {
  const HeldGradient* const held = gradients_->held(unit.index());
  if (held == nullptr) return;
  const Held mine = held_at_rest(resolved_, State::optimizer, unit.layout(), exchange_.rank());
  for (const Slot& slot : unit.layout().slots()) {
    const std::int64_t begin = std::max(slot.begin, mine.begin), end = std::min(slot.end(), mine.begin + mine.count);
    if (begin >= end) continue;
    const View view = held->view({begin, end - begin});
    use(slot, {.parameter = slot.name,
               .begin = begin - slot.begin,
               .sum = tensor_at(unit.device(), view.data, scalar_type(view.dtype), view.count),
               .scale = 1.0 / held_times()});
  }
}

namespace {

// Views of memory that is the engine's end with the call that they were given to: who keeps one is told.
class EndOfSlice {
 public:
  explicit EndOfSlice(const GradientSlice& slice) : slice_(slice) {}
  ~EndOfSlice() {
    c10::StorageImpl& storage = *slice_.sum.storage().unsafeGetStorageImpl();
    storage.set_data_ptr_noswap(at::DataPtr(nullptr, slice_.sum.device()));
    storage.release_data_and_set_meta_custom_data_ptr_error_msg_(
        "zero: the gradient slice of parameter '" + slice_.parameter +
        "' is used after the call of for_each_gradient_slice() that it was given to; clone what is to be kept");
  }
  EndOfSlice(const EndOfSlice&) = delete;
  EndOfSlice& operator=(const EndOfSlice&) = delete;

 private:
  const GradientSlice& slice_;
};

}  // namespace

void Engine::Impl::for_each_gradient_slice(const std::function<void(const GradientSlice&)>& use) {
  check_gradients("for_each_gradient_slice()");
  const Unwatched unwatched;
  const at::NoGradGuard no_grad;
  for (auto& unit : units_)
    each_gradient_slice(*unit, [&](const Slot&, const GradientSlice& slice) {
      const EndOfSlice end(slice);
      use(slice);
    });
}

at::Tensor Engine::Impl::gradient(const at::Tensor& parameter) {
  check_gradients("gradient()");
  Unit& unit = unit_of(parameter, "gradient()");
  const Unwatched unwatched;
  const at::NoGradGuard no_grad;
  const at::TensorOptions wide(scalar_type(accumulation(unit.layout().dtype())));
  if (!unit.adopted()) return at::empty_like(parameter, wide);
  const at::Tensor flat = at::zeros({unit.layout().length()}, wide);
  each_gradient_slice(unit, [&](const Slot& slot, const GradientSlice& slice) {
    flat.narrow(0, slot.begin + slice.begin, slice.sum.numel()).copy_(slice.sum);
  });
  gather_updated(unit, flat);
  return unit.part_of(flat, parameter).mul(1.0 / held_times()).to(unit.device());
}

}  // namespace zero
