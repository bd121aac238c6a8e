#include "device/simulated_device.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include <atomic>
#include <utility>

#include "base/exact_sum.h"
#include "base/float8_arrays.h"
#include "base/float8_blocks.h"
#include "device/torch/devices.h"
#include "device/torch/host_device.h"
#include "device/written_weights.h"

namespace zero::test {
namespace {

using accelerator::Access;

std::atomic<bool> multiplies = false;

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

// Where one waits for another.
struct Sites {
  accelerator::Site begin, join;
};

// Says at which site it is.
class SitedWork final : public SideStream::Work {
 public:
  SitedWork(std::shared_ptr<Work> inner, Sites sites) : inner_(std::move(inner)), sites_(sites) {}

  void run(const std::function<void()>& task) override {
    const accelerator::AtSite begin(sites_.begin);
    inner_->run([&] {
      const accelerator::AtSite other(accelerator::Site::other);
      task();
    });
  }
  void join() override {
    const accelerator::AtSite join(sites_.join);
    inner_->join();
  }
  void finish() override {
    const accelerator::AtSite finish(accelerator::Site::finish);
    inner_->finish();
  }
  bool finished() override { return inner_->finished(); }

 private:
  std::shared_ptr<Work> inner_;
  Sites sites_;
};

class SitedStream final : public SideStream {
 public:
  SitedStream(std::unique_ptr<SideStream> inner, Sites sites) : inner_(std::move(inner)), sites_(sites) {}
  std::shared_ptr<Work> work() override { return std::make_shared<SitedWork>(inner_->work(), sites_); }

 private:
  std::unique_ptr<SideStream> inner_;
  Sites sites_;
};

}  // namespace

std::unique_ptr<SideStream> SimulatedDevice::side_stream() {
  return std::make_unique<SitedStream>(TorchDevice::side_stream(),
                                       Sites{accelerator::Site::begin, accelerator::Site::join});
}

std::unique_ptr<SideStream> SimulatedDevice::copy_stream() {
  return std::make_unique<SitedStream>(TorchDevice::copy_stream(),
                                       Sites{accelerator::Site::copy, accelerator::Site::copied});
}

void SimulatedDevice::follow(Pending operation) {
  const accelerator::AtSite follow(accelerator::Site::follow);
  TorchDevice::follow(std::move(operation));
}

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

void SimulatedDevice::add_squares(const void* values, Dtype dtype, std::int64_t count, std::int64_t* limbs) {
  if (count == 0) return;
  launch({reads(values, dtype, count), writes(limbs, Dtype::i64, kSquareLimbs)},
         [from = there(values), dtype, count, to = there(limbs)] { HostDevice().add_squares(from, dtype, count, to); });
}

void SimulatedDevice::update(const Optimizer& optimizer, const UpdateFactors& factors, const UpdateRange& range) {
  if (range.count == 0) return;
  launch(ranges_of(range), [optimizer, factors, here = there(range)] { zero::update(optimizer, factors, here); });
}

void SimulatedDevice::read_weights(const UpdateRange& range, void* weights) {
  std::vector<Access> ranges = ranges_of(range);
  ranges.push_back(writes(weights, accumulation(range.dtype), range.count));
  launch(ranges, [here = there(range), to = there(weights)] { zero::read_weights(here, to); });
}

void SimulatedDevice::update_moments(const Optimizer& optimizer, const UpdateFactors& factors, const UpdateRange& range,
                                     const void* weights, void* input, Dtype input_dtype) {
  std::vector<Access> ranges = ranges_of(range);
  ranges.push_back(writes(input, input_dtype, range.count));
  if (weights != nullptr) ranges.push_back(reads(weights, accumulation(range.dtype), range.count));
  launch(ranges, [optimizer, factors, here = there(range), from = there(weights), to = there(input), input_dtype] {
    zero::update_moments(optimizer, factors, here, from, to, input_dtype);
  });
}

void SimulatedDevice::apply_step(double kept, double size, const void* step, const UpdateFactors& factors,
                                 const UpdateRange& range) {
  std::vector<Access> ranges = ranges_of(range);
  ranges.push_back(reads(step, accumulation(range.dtype), range.count));
  launch(ranges, [kept, size, from = there(step), factors, here = there(range)] {
    zero::apply_step(kept, size, from, factors, here);
  });
}

void SimulatedDevice::encode(const void* values, Dtype dtype, std::uint8_t* out, std::int64_t count) {
  launch({reads(values, dtype, count), writes(out, Dtype::u8, blocks_bytes(count))},
         [from = there(values), dtype, to = there(out), count] { encode_blocks(from, dtype, to, count); });
}

void SimulatedDevice::decode(const std::uint8_t* in, void* values, Dtype dtype, std::int64_t count) {
  launch({reads(in, Dtype::u8, blocks_bytes(count)), writes(values, dtype, count)},
         [from = there(in), to = there(values), dtype, count] { decode_blocks(from, to, dtype, count); });
}

void SimulatedDevice::find_largest(const void* values, Dtype dtype, std::int64_t count, float* largest, float* noted) {
  std::vector<Access> ranges{reads(values, dtype, count), writes(largest, Dtype::f32, 1)};
  if (noted != nullptr) ranges.push_back(writes(noted, Dtype::f32, 1));
  launch(ranges, [from = there(values), dtype, count, to = there(largest), also = there(noted)] {
    zero::find_largest(from, dtype, count, to, also);
  });
}

void SimulatedDevice::to_float8(Float8Format format, const void* values, Dtype dtype, std::int64_t count, float given,
                                Float8Scale* scale, std::uint8_t* codes) {
  launch({reads(values, dtype, count), writes(scale, Dtype::u8, sizeof(Float8Scale)), writes(codes, Dtype::u8, count)},
         [format, from = there(values), dtype, count, given, by = there(scale), to = there(codes)] {
           zero::to_float8(format, from, dtype, count, given, by, to);
         });
}

void SimulatedDevice::from_float8(Float8Format format, const std::uint8_t* codes, void* values, std::int64_t count) {
  launch({reads(codes, Dtype::u8, count), writes(values, Dtype::bf16, count)},
         [format, from = there(codes), to = there(values), count] {
           zero::from_float8(format, from, static_cast<Bf16*>(to), count);
         });
}

bool SimulatedDevice::multiplies_float8() const {
  return multiplies;
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

void multiply_float8(bool there) {
  multiplies = there;
}

void install_simulated_device() {
  register_devices(accelerator::kType, [](c10::Device where) { return std::make_unique<SimulatedDevice>(where); });
}

}  // namespace zero::test
