#include "device/update.h"

#include <algorithm>
#include <array>
#include <type_traits>

#include "base/blockwise.h"
#include "base/half.h"
#include "base/simd.h"
#include "device/update_cases.h"

namespace zero {
namespace {

using namespace cases;

// Elements that a loop takes at most: its index then fits the lanes of fp32.
constexpr std::int64_t kSweep = std::int64_t{1} << 30;

// The one loop of all optimizers. At most kSweep elements.
template <class Rule, class T, class Weights, class Moments>
ZERO_MULTIVERSION void sweep(const Rule rule, const T scale, const T* const gradient, const Weights weights,
                             const Moments first, const Moments second, const Moments third, const std::int64_t n) {
  const auto count = static_cast<std::int32_t>(n);
#pragma GCC ivdep
  for (std::int32_t i = 0; i < count; ++i) {
    update_element(rule, gradient[i] * scale, weights, first, second, third, i);
  }
}

template <class T, class Weights>
ZERO_MULTIVERSION void copy(const Weights weights, T* const out, const std::int64_t n) {
#pragma GCC ivdep
  for (std::int64_t i = 0; i < n; ++i) out[i] = weights.load(i);
}

template <class Narrow>
ZERO_MULTIVERSION void widen_all(const Narrow* const values, float* const wide, const std::int64_t n) {
#pragma GCC ivdep
  for (std::int64_t i = 0; i < n; ++i) wide[i] = widen(values[i]);
}

// The gradient of a range in the type it is computed with; one that is narrower is widened block by block.
template <class T>
class GradientOf {
 public:
  explicit GradientOf(const UpdateRange& range) : range_(range) {}

  // How many elements read() gives at a time.
  std::int64_t stretch() const { return range_.narrow_gradient ? kStateBlock : kSweep; }
  // Elements [begin, begin + n), valid until the next call.
  const T* read(std::int64_t begin, std::int64_t n) {
    if constexpr (std::is_same_v<T, float>) {
      if (range_.narrow_gradient) return widened(begin, n);
    }
    return static_cast<const T*>(range_.gradient) + begin;
  }

 private:
  const float* widened(std::int64_t begin, std::int64_t n) {
    if (range_.dtype == Dtype::bf16) {
      widen_all(static_cast<const Bf16*>(range_.gradient) + begin, block_.data(), n);
    } else {
      widen_all(static_cast<const Fp16*>(range_.gradient) + begin, block_.data(), n);
    }
    return block_.data();
  }

  const UpdateRange& range_;
  std::array<float, kStateBlock> block_;
};

// Sweeps over a whole range.
template <class Rule, class T, class Weights, class Moments>
void sweep_range(const Rule& rule, const UpdateRange& range, const T scale, const Weights& weights,
                 const Moments& first, const Moments& second, const Moments& third) {
  GradientOf<T> gradient(range);
  for (std::int64_t begin = 0; begin < range.count; begin += gradient.stretch()) {
    const std::int64_t n = std::min(gradient.stretch(), range.count - begin);
    const auto moment = [&](const Moments& m, int which) { return which < Rule::kMoments ? m.from(begin) : m; };
    sweep(rule, scale, gradient.read(begin, n), weights.from(begin), moment(first, 0), moment(second, 1),
          moment(third, 2), n);
  }
}

// Moments in codes: block by block, they are numbers only while they are updated.
template <class Rule, class Weights>
void sweep_blocks(const Rule& rule, const UpdateRange& r, float scale, const Weights& weights) {
  GradientOf<float> gradient(r);
  std::array<std::array<float, kStateBlock>, kMaxMoments> moments;
  const auto local = [&](std::size_t i) { return Values<float>{moments[i].data()}; };
  std::int64_t block = 0;
  for (std::int64_t begin = 0; begin < r.count; ++block) {
    const std::int64_t count = std::min(r.count - begin, kStateBlock - (block == 0 ? r.in_block : 0));
    const auto codes = [&](std::size_t i) { return static_cast<std::uint8_t*>(r.moments[i]) + begin; };
    for (std::size_t i = 0; i < Rule::kMoments; ++i)
      dequantize(codes(i), r.scales[i][block], signs_of(i), moments[i].data(), count);
    sweep(rule, scale, gradient.read(begin, count), weights.from(begin), local(0), local(1), local(2), count);
    for (std::size_t i = 0; i < Rule::kMoments; ++i)
      r.scales[i][block] = quantize(moments[i].data(), signs_of(i), codes(i), count);
    begin += count;
  }
}

struct Sweeps {
  template <class Rule, class T, class Weights, class Moments>
  void range(const Rule& rule, const UpdateRange& r, const T scale, const Weights& weights, const Moments& first,
             const Moments& second, const Moments& third) const {
    sweep_range(rule, r, scale, weights, first, second, third);
  }
  template <class Rule, class Weights>
  void blocks(const Rule& rule, const UpdateRange& r, float scale, const Weights& weights) const {
    sweep_blocks(rule, r, scale, weights);
  }
};

void* moved(void* array, std::int64_t elements, Dtype dtype) {
  return array == nullptr ? nullptr : static_cast<char*>(array) + elements * size_of(dtype);
}

}  // namespace

void update(const Optimizer& optimizer, const UpdateFactors& f, const UpdateRange& r) {
  with_weights(f, r, [&](const auto& weights) {
    run<Wide<std::decay_t<decltype(weights)>>>(optimizer, f, r, weights, Sweeps{});
  });
}

void read_weights(const UpdateRange& r, void* out) {
  with_weights({}, r, [&](const auto& weights) {
    using T = Wide<std::decay_t<decltype(weights)>>;
    copy(weights, static_cast<T*>(out), r.count);
  });
}

void update_moments(const Optimizer& optimizer, const UpdateFactors& f, const UpdateRange& r, const void* weights,
                    void* input, Dtype input_dtype) {
  run_to_input(optimizer, f, r, weights, input, input_dtype, Sweeps{});
}

void apply_step(double kept, double size, const void* step, const UpdateFactors& f, const UpdateRange& r) {
  with_weights(f, r, [&](const auto& weights) {
    using T = Wide<std::decay_t<decltype(weights)>>;
    const Values<T> none{nullptr};
    const rules::Along<T> along{static_cast<T>(kept), static_cast<T>(size)};
    for (std::int64_t begin = 0; begin < r.count; begin += kSweep)
      sweep(along, T{1}, static_cast<const T*>(step) + begin, weights.from(begin), none, none, none,
            std::min(kSweep, r.count - begin));
  });
}

UpdateRange part_of(const UpdateRange& r, std::int64_t begin, std::int64_t count) {
  const Dtype wide = accumulation(r.dtype);
  UpdateRange part = r;
  part.count = count;
  part.first += begin;
  part.main = moved(r.main, begin, wide);
  part.parameter = moved(r.parameter, begin, r.dtype);
  part.rest = moved(r.rest, begin, r.dtype);
  part.gradient = static_cast<const char*>(r.gradient) + begin * size_of(r.gradient_dtype());
  for (void*& moment : part.moments) moment = moved(moment, begin, wide);
  return part;
}

}  // namespace zero
