#include <algorithm>
#include <array>
#include <bit>
#include <span>
#include <type_traits>

#include "base/blockwise.h"
#include "base/codec.h"
#include "base/error_feedback.h"
#include "base/exact_sum.h"
#include "base/half.h"
#include "base/targets.h"
#include "device/cases.h"
#include "device/kernels.h"

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

void compute(const Update& k) {
  with_weights(k.factors, k.range,
               [&]<class Weights>(const Weights& weights) { run<Wide<Weights>>(k, weights, Sweeps{}); });
}

void compute(const ReadWeights& k) {
  with_weights({}, k.range, [&]<class Weights>(const Weights& weights) {
    copy(weights, static_cast<Wide<Weights>*>(k.weights), k.range.count);
  });
}

void compute(const UpdateMoments& k) {
  run(k, Sweeps{});
}

void compute(const ApplyStep& k) {
  with_weights(k.factors, k.range, [&]<class Weights>(const Weights& weights) {
    using T = Wide<Weights>;
    const Values<T> none{nullptr};
    const rules::Along<T> along{static_cast<T>(k.kept), static_cast<T>(k.size)};
    for (std::int64_t begin = 0; begin < k.range.count; begin += kSweep)
      sweep(along, T{1}, static_cast<const T*>(k.step) + begin, weights.from(begin), none, none, none,
            std::min(kSweep, k.range.count - begin));
  });
}

constexpr std::int64_t kAddedAtOnce = 1024;

template <class From, class To>
void load(const From* gradient, To* sum, std::int64_t n) {
#pragma GCC ivdep
  for (std::int64_t i = 0; i < n; ++i) sum[i] = widen(gradient[i]);
}

template <class Kept, class To>
void add_left(const Kept* source, To* sum, std::int64_t n) {
#pragma GCC ivdep
  for (std::int64_t i = 0; i < n; ++i) sum[i] = widen(source[i]) + sum[i];
}

void keep(const double* sum, double* target, std::int64_t n) {
  std::copy_n(sum, n, target);
}
void keep(const float* sum, float* target, std::int64_t n) {
  std::copy_n(sum, n, target);
}
template <class Narrow>
void keep(const float* sum, Narrow* target, std::int64_t n) {
#pragma GCC ivdep
  for (std::int64_t i = 0; i < n; ++i) narrow(sum[i], target[i]);
}

void compute(const Accumulate& k) {
  with_types(k, [&]<class From, class Kept>(From, Kept) {
    using To = decltype(widen(From{}));
    std::array<To, kAddedAtOnce> sum;
    for (std::int64_t begin = 0; begin < k.count; begin += kAddedAtOnce) {
      const std::int64_t n = std::min(kAddedAtOnce, k.count - begin);
      if (k.gradient != nullptr) {
        load(static_cast<const From*>(k.gradient) + begin, sum.data(), n);
      } else {
        std::fill_n(sum.data(), n, To{0});
      }
      for (const void* source : k.sources) add_left(static_cast<const Kept*>(source) + begin, sum.data(), n);
      keep(sum.data(), static_cast<Kept*>(k.target) + begin, n);
    }
  });
}

void compute(const AddSquares& k) {
  ExactSum sum;
  sum.add(std::span<const std::int64_t>(k.limbs, ExactSum::kLimbs));
  sum_of_squares(k.values, k.dtype, k.count, sum, k.limbs[ExactSum::kLimbs]);
  std::ranges::copy(sum.limbs(), k.limbs);
}

void compute(const StartCompensation& k) {
  for (std::int64_t i = 0; i < k.count; ++i)
    start_compensation(static_cast<const float*>(k.values)[i], static_cast<Bf16*>(k.compensation)[i]);
}

void compute(const ResetCompensation& k) {
  for (std::int64_t i = 0; i < k.count; ++i)
    reset_compensation(static_cast<const Bf16*>(k.written)[i], static_cast<Bf16*>(k.compensation)[i]);
}

void compute(const AdoptWritten& k) {
  with_narrow(k.stored, [&]<class Stored>(Stored) {
    for (std::int64_t i = 0; i < k.count; ++i)
      adopt_written(static_cast<const Stored*>(k.written)[i], static_cast<float*>(k.main)[i]);
  });
}

template <class Codec, class T>
ZERO_MULTIVERSION void encode(const T* const values, std::uint8_t* const heads, const std::int64_t count) {
  constexpr std::int64_t block = Codec::kBlock;
  std::uint8_t* const codes = heads + bytes_of_heads<Codec>(count);
  for (std::int64_t begin = 0; begin < count; begin += block)
    Codec::encode(values + begin, std::min(block, count - begin), codes + begin * Codec::kBits / 8,
                  heads + begin / block * Codec::kHead);
}

template <class Codec, class T>
ZERO_MULTIVERSION void decode(const std::uint8_t* const heads, T* const values, const std::int64_t count) {
  constexpr std::int64_t block = Codec::kBlock;
  const std::uint8_t* const codes = heads + bytes_of_heads<Codec>(count);
  for (std::int64_t begin = 0; begin < count; begin += block) {
    const std::int64_t n = std::min(block, count - begin);
    Codec::decode(codes + begin * Codec::kBits / 8, heads + begin / block * Codec::kHead, n, 0, n, values + begin);
  }
}

template <class Codec, class T>
ZERO_MULTIVERSION void encode_differences(const T* const values, const T* const base, std::uint8_t* const heads,
                                          const std::int64_t count) {
  constexpr std::int64_t block = Codec::kBlock;
  std::uint8_t* const codes = heads + bytes_of_heads<Codec>(count);
  float differences[block];
  for (std::int64_t begin = 0; begin < count; begin += block) {
    const std::int64_t n = std::min(block, count - begin);
    for (std::int64_t i = 0; i < n; ++i) differences[i] = difference_of(values[begin + i], base[begin + i]);
    Codec::encode(differences, n, codes + begin * Codec::kBits / 8, heads + begin / block * Codec::kHead);
  }
}

template <class Codec, class T>
ZERO_MULTIVERSION void encode_with_errors(const T* const values, std::uint8_t* const errors, std::uint8_t* const codes,
                                          const std::int64_t count) {
  constexpr std::int64_t span = feedback::kSpan<Codec>;
  const feedback::Coded to = feedback::coded<Codec>(codes, count), kept = feedback::coded<ErrorBlocks>(errors, count);
  for (std::int64_t begin = 0; begin < count; begin += span)
    feedback::encode<Codec>(values + begin, std::min(span, count - begin), to.from<Codec>(begin),
                            kept.from<ErrorBlocks>(begin));
}

template <class Codec, class T>
ZERO_MULTIVERSION void add_decoded(const std::uint8_t* const heads, T* const values, const std::int64_t count) {
  constexpr std::int64_t block = Codec::kBlock;
  const std::uint8_t* const codes = heads + bytes_of_heads<Codec>(count);
  float decoded[block];
  for (std::int64_t begin = 0; begin < count; begin += block) {
    const std::int64_t n = std::min(block, count - begin);
    Codec::decode(codes + begin * Codec::kBits / 8, heads + begin / block * Codec::kHead, n, 0, n, decoded);
    for (std::int64_t i = 0; i < n; ++i) add_difference(decoded[i], values[begin + i]);
  }
}

void compute(const Encode& k) {
  with_codec(k.codec, [&]<class Codec>(Codec) {
    with_single(k.dtype, [&]<class T>(T) {
      const auto* const values = static_cast<const T*>(k.values);
      if (k.errors != nullptr)
        encode_with_errors<Codec>(values, k.errors, k.codes, k.count);
      else if (k.base != nullptr)
        encode_differences<Codec>(values, static_cast<const T*>(k.base), k.codes, k.count);
      else
        encode<Codec>(values, k.codes, k.count);
    });
  });
}

void compute(const Decode& k) {
  with_codec(k.codec, [&]<class Codec>(Codec) {
    with_single(k.dtype, [&]<class T>(T) {
      auto* const values = static_cast<T*>(k.values);
      k.adds ? add_decoded<Codec>(k.codes, values, k.count) : decode<Codec>(k.codes, values, k.count);
    });
  });
}

// As integers, magnitudes are in the order of their values, and NaN above all.
template <class T>
ZERO_MULTIVERSION std::int32_t largest_bits(const T* const values, const std::int64_t count) {
  std::int32_t largest = 0;
  for (std::int64_t i = 0; i < count; ++i)
    largest = std::max(largest, std::bit_cast<std::int32_t>(widen(values[i])) & 0x7fffffff);
  return largest;
}

template <class T, class Float8>
ZERO_MULTIVERSION void narrow_all(const T* const values, const float scale, Float8* const out,
                                  const std::int64_t count) {
#pragma GCC ivdep
  for (std::int64_t i = 0; i < count; ++i) {
    Float8 code;
    narrow(widen(values[i]) * scale, code);
    out[i].bits = code.bits;
  }
}

template <class Float8>
ZERO_MULTIVERSION void widen_codes(const Float8* const values, Bf16* const out, const std::int64_t count) {
#pragma GCC ivdep
  for (std::int64_t i = 0; i < count; ++i)
    out[i].bits = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(widen(values[i])) >> 16);
}

void grow(float& to, std::int32_t bits) {
  to = std::bit_cast<float>(std::max(std::bit_cast<std::int32_t>(to), bits));
}

void compute(const FindLargest& k) {
  with_single(k.dtype, [&]<class T>(T) {
    const std::int32_t bits = largest_bits(static_cast<const T*>(k.values), k.count);
    grow(*k.largest, bits);
    if (k.noted != nullptr) grow(*k.noted, bits);
  });
}

void compute(const ToFloat8& k) {
  k.scale->scale = float8::scale_of(float8::largest_of(k.format), k.scale->largest, k.given);
  k.scale->inverse = 1 / k.scale->scale;
  with_single(k.dtype, [&]<class T>(T) {
    with_codes(k.format, [&]<class Format>(Format) {
      narrow_all(static_cast<const T*>(k.values), k.scale->scale, reinterpret_cast<Format*>(k.codes), k.count);
    });
  });
}

void compute(const FromFloat8& k) {
  with_codes(k.format, [&]<class Format>(Format) {
    widen_codes(reinterpret_cast<const Format*>(k.codes), static_cast<Bf16*>(k.values), k.count);
  });
}

}  // namespace

void run_on_host(const OwnKernel& kernel) {
  std::visit([](const auto& each) { compute(each); }, kernel);
}

}  // namespace zero
