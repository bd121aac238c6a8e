#include "device/simulated_device.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include <utility>

#include "device/torch/devices.h"
#include "device/weights.h"

namespace zero::test {
namespace {

using accelerator::Access;

Access reads(const void* values, Dtype dtype, std::int64_t count) {
  return {values, static_cast<std::size_t>(count * size_of(dtype))};
}

Access writes(const void* values, Dtype dtype, std::int64_t count) {
  return {values, static_cast<std::size_t>(count * size_of(dtype)), true};
}

template <class T>
T* there(T* pointer) {
  return pointer == nullptr ? nullptr : static_cast<T*>(accelerator::shadow(pointer));
}

UpdateRange there(UpdateRange range) {
  range.main = there(range.main);
  range.gradient = there(range.gradient);
  range.parameter = there(range.parameter);
  range.rest = there(range.rest);
  for (void*& moment : range.moments) moment = there(moment);
  for (float*& scale : range.scales) scale = there(scale);
  return range;
}

// Of moments, whose width the optimizer knows, and of scales the first bytes.
std::vector<Access> ranges_of(const UpdateRange& range) {
  std::vector<Access> ranges;
  const auto add = [&](const Access& access) {
    if (access.pointer != nullptr) ranges.push_back(access);
  };
  add(reads(range.gradient, range.gradient_dtype(), range.count));
  add(writes(range.main, accumulation(range.dtype), range.count));
  add(writes(range.parameter, range.dtype, range.count));
  add(writes(range.rest, range.dtype, range.count));
  for (const void* moment : range.moments) add(writes(moment, Dtype::u8, range.count));
  for (const float* scale : range.scales) add(writes(scale, Dtype::f32, 1));
  return ranges;
}

}  // namespace

c10::Stream SimulatedDevice::stream() const {
  return c10::impl::VirtualGuardImpl(accelerator::kType).getStream(where());
}

void SimulatedDevice::launch(const std::vector<Access>& ranges, std::function<void()> kernel) const {
  accelerator::launch(stream(), ranges, std::move(kernel));
}

void SimulatedDevice::fold(const Fold& how, std::span<void* const> levels, Dtype kept, const void* gradient,
                           Dtype dtype, std::int64_t count) {
  if (count == 0) return;
  std::vector<Access> ranges;
  std::vector<void*> places;
  for (std::size_t i = 0; i < levels.size(); ++i) {
    places.push_back(there(levels[i]));
    if (levels[i] == nullptr) continue;
    ranges.push_back(static_cast<int>(i) == how.target ? writes(levels[i], kept, count)
                                                       : reads(levels[i], kept, count));
  }
  if (gradient != nullptr) ranges.push_back(reads(gradient, dtype, count));
  launch(ranges, [how, places = std::move(places), kept, from = there(gradient), dtype, count] {
    zero::fold(how, places, kept, from, dtype, count);
  });
}

void SimulatedDevice::add_squares(const void* values, Dtype dtype, std::int64_t count, ExactSum& sum,
                                  std::int64_t& nonfinite) {
  if (count == 0) return;
  launch({reads(values, dtype, count)}, [from = there(values), dtype, count, &sum, &nonfinite] {
    sum_of_squares(from, dtype, count, sum, nonfinite);
  });
  c10::impl::VirtualGuardImpl(accelerator::kType).synchronizeStream(stream());
}

void SimulatedDevice::update(const Optimizer& optimizer, const UpdateFactors& factors, const UpdateRange& range) {
  if (range.count == 0) return;
  launch(ranges_of(range), [optimizer, factors, here = there(range)] { zero::update(optimizer, factors, here); });
}

void SimulatedDevice::keep_rest(const void* values, void* rest, std::int64_t count) {
  launch({reads(values, Dtype::f32, count), writes(rest, Dtype::bf16, count)},
         [from = there(values), to = there(rest), count] {
           zero::keep_rest(static_cast<const float*>(from), static_cast<Bf16*>(to), count);
         });
}

void SimulatedDevice::drop_misfits(const void* written, void* rest, std::int64_t count) {
  launch({reads(written, Dtype::bf16, count), writes(rest, Dtype::bf16, count)},
         [from = there(written), to = there(rest), count] {
           zero::drop_misfits(static_cast<const Bf16*>(from), static_cast<Bf16*>(to), count);
         });
}

void SimulatedDevice::adopt_written(const void* written, Dtype stored, void* main, std::int64_t count) {
  launch({reads(written, stored, count), writes(main, Dtype::f32, count)},
         [from = there(written), stored, to = there(main), count] {
           zero::adopt_written(from, stored, static_cast<float*>(to), count);
         });
}

void install_simulated_device() {
  register_devices(accelerator::kType, [](c10::Device where) { return std::make_unique<SimulatedDevice>(where); });
}

}  // namespace zero::test
