// The kernels of a device that computes each element in a thread of its own. They are launched by `Launch`, a value:
//   elements(count, body)        body(i) for i in [0, count)
//   blocks(count, body)          for each block b and each thread t of kStateBlock: body.load(b, t, state), which says
//                                whether there is such an element; then, when the whole block has, body.store(b, t,
//                                state, largest) with the largest of the state's magnitudes in the block
//   sums(count, body, n, out)    body(i, add), where add(k, value) adds to out[k], k < n, in any order
//   most(count, body, out, also) *out and, unless it is null, *also grow to the largest body(i), an int32
// Bodies are copied to the device: they hold pointers of its memory, and numbers. The same bits as those of the host
// (device/update.h, accumulate.h, weights.h, base/exact_sum.h). No torch.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <span>
#include <type_traits>
#include <utility>

#include "base/block_codes.h"
#include "base/both.h"
#include "base/exact_sum.h"
#include "base/float8_block.h"
#include "base/float8_blocks.h"
#include "base/float8_scale.h"
#include "device/accumulate.h"
#include "device/update_cases.h"
#include "device/written_weights.h"

namespace zero::grid {

// Of a step, as many as a tree over 2^63 micro-batches has.
inline constexpr std::size_t kMostLevels = 64;

template <class From, class Kept>
struct FoldElements {
  using To = decltype(widen(From{}));
  std::array<const Kept*, kMostLevels> sources;
  int count;
  Kept* target;
  const From* gradient;  // null: zeros

  ZERO_BOTH void operator()(std::int64_t i) const {
    To sum = gradient != nullptr ? widen(gradient[i]) : To{0};
    for (int source = 0; source < count; ++source) sum = widen(sources[static_cast<std::size_t>(source)][i]) + sum;
    if constexpr (std::is_same_v<Kept, To>) {
      target[i] = sum;
    } else {
      narrow(sum, target[i]);
    }
  }
};

template <class T>
struct SquareBlocks {
  const T* values;
  std::int64_t count;

  ZERO_BOTH double square(std::int64_t i) const {
    const double value = i < count ? static_cast<double>(widen(values[i])) : 0;
    return value * value;
  }
  // In the order of base/exact_sum.cpp.
  ZERO_BOTH double lane(std::int64_t i) const { return (square(i) + square(i + 8)) + (square(i + 4) + square(i + 12)); }
  template <class Add>
  ZERO_BOTH void operator()(std::int64_t block, const Add& add) const {
    const std::int64_t i = block * kSquareBlock;
    const double sum = (lane(i) + lane(i + 2)) + (lane(i + 1) + lane(i + 3));
    if (!std::isfinite(sum)) return add(ExactSum::kLimbs, 1);
    const ExactSum::Parts parts = ExactSum::parts_of(sum);
    for (int k = 0; k < 3; ++k)
      if (parts.limbs[k] != 0) add(parts.first + k, parts.limbs[k]);
  }
};

template <class Rule, class T, class Gradient, class Weights, class Moments>
struct UpdateElements {
  Rule rule;
  T scale;
  Gradient gradient;
  Weights weights;
  Moments first, second, third;

  ZERO_BOTH void operator()(std::int64_t i) const {
    cases::update_element(rule, gradient.load(i) * scale, weights, first, second, third, i);
  }
};

template <class Rule, class Gradient, class Weights>
struct UpdateBlocks {
  static constexpr int kMoments = Rule::kMoments;
  struct State {
    std::array<float, kMaxMoments> moments;
    ZERO_BOTH std::int32_t magnitude(int k) const { return codes::magnitude(moments[static_cast<std::size_t>(k)]); }
  };
  Rule rule;
  float scale;
  Gradient gradient;
  Weights weights;
  std::array<std::uint8_t*, kMaxMoments> moments;
  std::array<float*, kMaxMoments> scales;
  std::array<codes::Pieces, kMaxMoments> maps;
  std::int64_t in_block, count;

  // The element of a thread, if it has one; the first block may have begun before the range.
  ZERO_BOTH std::int64_t element(std::int64_t block, int thread) const {
    const std::int64_t end = (block + 1) * kStateBlock - in_block;
    const std::int64_t i = (block == 0 ? 0 : end - kStateBlock) + thread;
    return i < (end < count ? end : count) ? i : -1;
  }
  ZERO_BOTH bool load(std::int64_t block, int thread, State& state) const {
    const std::int64_t i = element(block, thread);
    if (i < 0) return false;
    for (std::size_t k = 0; k < kMoments; ++k)
      state.moments[k] = codes::decode(moments[k][i], maps[k], scales[k][block]);
    const auto at = [&](std::size_t k) { return arrays::One<float>{&state.moments[k]}; };
    cases::update_element(rule, gradient.load(i) * scale, weights, at(0), at(1), at(2), i);
    return true;
  }
  ZERO_BOTH void store(std::int64_t block, int thread, const State& state, const std::int32_t* largest) const {
    const std::int64_t i = element(block, thread);
    for (std::size_t k = 0; k < kMoments; ++k) {
      const codes::Scale size = codes::scale_of(largest[k]);
      moments[k][i] = codes::encode(state.moments[k], maps[k], size.inverse);
      if (thread == 0) scales[k][block] = size.value;
    }
  }
};

template <class T, class Weights>
struct ReadWeights {
  Weights weights;
  T* out;
  ZERO_BOTH void operator()(std::int64_t i) const { out[i] = weights.load(i); }
};

// A thread for each block.
template <class T>
struct EncodeBlocks {
  const T* values;
  std::uint8_t *scales, *codes;
  std::int64_t count;
  ZERO_BOTH void operator()(std::int64_t block) const {
    const std::int64_t begin = block * kWireBlock;
    float8::encode_block(values + begin, std::min(std::int64_t{kWireBlock}, count - begin), codes + begin,
                         scales[block]);
  }
};

template <class T>
struct DecodeElements {
  const std::uint8_t *scales, *codes;
  T* values;
  ZERO_BOTH void operator()(std::int64_t i) const {
    float8::decode_block(codes + i, scales[i / kWireBlock], values + i, 1);
  }
};

struct KeepRest {
  const float* values;
  Bf16* rest;
  ZERO_BOTH void operator()(std::int64_t i) const { rest_of(values[i], rest[i]); }
};

struct DropMisfits {
  const Bf16* written;
  Bf16* rest;
  ZERO_BOTH void operator()(std::int64_t i) const { drop_misfit(written[i], rest[i]); }
};

template <class Narrow>
struct AdoptWritten {
  const Narrow* written;
  float* main;
  ZERO_BOTH void operator()(std::int64_t i) const { adopt_changed(written[i], main[i]); }
};

// Calls `use` with where the gradient of a range is read from.
template <class T, class Use>
void with_gradient(const UpdateRange& r, const Use& use) {
  if constexpr (std::is_same_v<T, float>) {
    if (r.narrow_gradient && r.dtype == Dtype::bf16)
      return use(arrays::Widened<Bf16>{static_cast<const Bf16*>(r.gradient)});
    if (r.narrow_gradient && r.dtype == Dtype::f16)
      return use(arrays::Widened<Fp16>{static_cast<const Fp16*>(r.gradient)});
  }
  use(arrays::Values<const T>{static_cast<const T*>(r.gradient)});
}

// As integers, magnitudes are in the order of their values, and NaN above all.
template <class T>
struct Magnitudes {
  const T* values;
  ZERO_BOTH std::int32_t operator()(std::int64_t i) const {
    return std::bit_cast<std::int32_t>(widen(values[i])) & 0x7fffffff;
  }
};

// One element writes the scale, also where there are no values.
template <class T, class Format>
struct ToFloat8 {
  const T* values;
  std::int64_t count;
  float given;
  Float8Scale* scale;
  Format* codes;
  ZERO_BOTH void operator()(std::int64_t i) const {
    const float by = float8::scale_of(Format::kLargest, scale->largest, given);
    if (i < count) narrow(widen(values[i]) * by, codes[i]);
    if (i > 0) return;
    scale->scale = by;
    scale->inverse = 1 / by;
  }
};

template <class Format>
struct FromFloat8 {
  const Format* codes;
  Bf16* values;
  ZERO_BOTH void operator()(std::int64_t i) const {
    values[i].bits = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(widen(codes[i])) >> 16);
  }
};

template <class Launch>
struct Sweeps {
  Launch launch;

  template <class Rule, class T, class Weights, class Moments>
  void range(const Rule& rule, const UpdateRange& r, const T scale, const Weights& weights, const Moments& first,
             const Moments& second, const Moments& third) const {
    with_gradient<T>(r, [&]<class Gradient>(const Gradient& gradient) {
      launch.elements(r.count, UpdateElements<Rule, T, Gradient, Weights, Moments>{rule, scale, gradient, weights,
                                                                                   first, second, third});
    });
  }
  template <class Rule, class Weights>
  void blocks(const Rule& rule, const UpdateRange& r, float scale, const Weights& weights) const {
    with_gradient<float>(r, [&]<class Gradient>(const Gradient& gradient) {
      UpdateBlocks<Rule, Gradient, Weights> body{rule,     scale,  gradient,   weights, {},
                                                 r.scales, maps(), r.in_block, r.count};
      for (std::size_t k = 0; k < kMaxMoments; ++k) body.moments[k] = static_cast<std::uint8_t*>(r.moments[k]);
      launch.blocks((r.count + r.in_block + kStateBlock - 1) / kStateBlock, body);
    });
  }

 private:
  static std::array<codes::Pieces, kMaxMoments> maps() {
    return [&]<std::size_t... k>(std::index_sequence<k...>) {
      return std::array<codes::Pieces, kMaxMoments>{codes::Pieces(cases::signs_of(k))...};
    }
    (std::make_index_sequence<kMaxMoments>());
  }
};

template <class Launch>
class Kernels {
 public:
  explicit Kernels(Launch launch) : launch_(launch) {}

  void fold(const Fold& how, std::span<void* const> levels, Dtype kept, const void* gradient, Dtype dtype,
            std::int64_t count) const {
    switch (dtype) {
      case Dtype::f64: return fold_typed<double, double>(how, levels, gradient, count);
      case Dtype::bf16: return fold_kept<Bf16>(how, levels, kept, gradient, count);
      case Dtype::f16: return fold_kept<Fp16>(how, levels, kept, gradient, count);
      default: return fold_kept<float>(how, levels, kept, gradient, count);
    }
  }

  // Adds to `limbs`, kSquareLimbs of them: those of the sum, see ExactSum, and how many blocks are not finite.
  void add_squares(const void* values, Dtype dtype, std::int64_t count, std::int64_t* limbs) const {
    switch (dtype) {
      case Dtype::f64: return squares<double>(values, count, limbs);
      case Dtype::bf16: return squares<Bf16>(values, count, limbs);
      case Dtype::f16: return squares<Fp16>(values, count, limbs);
      default: return squares<float>(values, count, limbs);
    }
  }

  void update(const Optimizer& optimizer, const UpdateFactors& factors, const UpdateRange& range) const {
    cases::with_weights(factors, range, [&]<class Weights>(const Weights& weights) {
      cases::run<cases::Wide<Weights>>(optimizer, factors, range, weights, Sweeps<Launch>{launch_});
    });
  }

  void read_weights(const UpdateRange& range, void* out) const {
    cases::with_weights({}, range, [&]<class Weights>(const Weights& weights) {
      using T = cases::Wide<Weights>;
      launch_.elements(range.count, ReadWeights<T, Weights>{weights, static_cast<T*>(out)});
    });
  }
  void update_moments(const Optimizer& optimizer, const UpdateFactors& factors, const UpdateRange& range,
                      const void* weights, void* input, Dtype input_dtype) const {
    cases::run_to_input(optimizer, factors, range, weights, input, input_dtype, Sweeps<Launch>{launch_});
  }
  void apply_step(double kept, double size, const void* step, const UpdateFactors& factors,
                  const UpdateRange& range) const {
    cases::with_weights(factors, range, [&]<class Weights>(const Weights& weights) {
      using T = cases::Wide<Weights>;
      using Along = rules::Along<T>;
      using None = arrays::Values<T>;
      launch_.elements(
          range.count,
          UpdateElements<Along, T, arrays::Values<const T>, Weights, None>{
              {static_cast<T>(kept), static_cast<T>(size)}, T{1}, {static_cast<const T*>(step)}, weights, {}, {}, {}});
    });
  }
  void encode(const void* values, Dtype dtype, std::uint8_t* out, std::int64_t count) const {
    switch (dtype) {
      case Dtype::bf16: return encode_typed(static_cast<const Bf16*>(values), out, count);
      case Dtype::f16: return encode_typed(static_cast<const Fp16*>(values), out, count);
      default: return encode_typed(static_cast<const float*>(values), out, count);
    }
  }
  void decode(const std::uint8_t* in, void* values, Dtype dtype, std::int64_t count) const {
    switch (dtype) {
      case Dtype::bf16: return decode_typed(in, static_cast<Bf16*>(values), count);
      case Dtype::f16: return decode_typed(in, static_cast<Fp16*>(values), count);
      default: return decode_typed(in, static_cast<float*>(values), count);
    }
  }
  void find_largest(const void* values, Dtype dtype, std::int64_t count, float* largest, float* noted) const {
    auto* const out = reinterpret_cast<std::int32_t*>(largest);
    auto* const also = reinterpret_cast<std::int32_t*>(noted);
    if (dtype == Dtype::bf16) return launch_.most(count, Magnitudes<Bf16>{static_cast<const Bf16*>(values)}, out, also);
    launch_.most(count, Magnitudes<float>{static_cast<const float*>(values)}, out, also);
  }
  void to_float8(Float8Format format, const void* values, Dtype dtype, std::int64_t count, float given,
                 Float8Scale* scale, std::uint8_t* codes) const {
    const auto run = [&]<class T, class Format>(const T* typed, Format* out) {
      launch_.elements(std::max(count, std::int64_t{1}), ToFloat8<T, Format>{typed, count, given, scale, out});
    };
    const auto to = [&]<class Format>(Format* out) {
      if (dtype == Dtype::bf16) return run(static_cast<const Bf16*>(values), out);
      run(static_cast<const float*>(values), out);
    };
    if (format == Float8Format::e4m3) return to(reinterpret_cast<E4m3*>(codes));
    to(reinterpret_cast<E5m2*>(codes));
  }
  void from_float8(Float8Format format, const std::uint8_t* codes, void* values, std::int64_t count) const {
    auto* const out = static_cast<Bf16*>(values);
    if (format == Float8Format::e4m3)
      return launch_.elements(count, FromFloat8<E4m3>{reinterpret_cast<const E4m3*>(codes), out});
    launch_.elements(count, FromFloat8<E5m2>{reinterpret_cast<const E5m2*>(codes), out});
  }
  void keep_rest(const void* values, void* rest, std::int64_t count) const {
    launch_.elements(count, KeepRest{static_cast<const float*>(values), static_cast<Bf16*>(rest)});
  }
  void drop_misfits(const void* written, void* rest, std::int64_t count) const {
    launch_.elements(count, DropMisfits{static_cast<const Bf16*>(written), static_cast<Bf16*>(rest)});
  }
  void adopt_written(const void* written, Dtype stored, void* main, std::int64_t count) const {
    auto* const weights = static_cast<float*>(main);
    if (stored == Dtype::bf16)
      return launch_.elements(count, AdoptWritten<Bf16>{static_cast<const Bf16*>(written), weights});
    launch_.elements(count, AdoptWritten<Fp16>{static_cast<const Fp16*>(written), weights});
  }

 private:
  template <class T>
  void encode_typed(const T* values, std::uint8_t* out, std::int64_t count) const {
    const std::int64_t scales = blocks_bytes(count) - count;
    launch_.elements(scales, EncodeBlocks<T>{values, out, out + scales, count});
  }
  template <class T>
  void decode_typed(const std::uint8_t* in, T* values, std::int64_t count) const {
    launch_.elements(count, DecodeElements<T>{in, in + (blocks_bytes(count) - count), values});
  }
  template <class From, class Kept>
  void fold_typed(const Fold& how, std::span<void* const> levels, const void* gradient, std::int64_t count) const {
    const auto level = [&](int i) { return static_cast<Kept*>(levels[static_cast<std::size_t>(i)]); };
    FoldElements<From, Kept> body{
        {}, static_cast<int>(how.sources.size()), level(how.target), static_cast<const From*>(gradient)};
    for (std::size_t i = 0; i < how.sources.size(); ++i) body.sources.at(i) = level(how.sources[i]);
    launch_.elements(count, body);
  }
  template <class From>
  void fold_kept(const Fold& how, std::span<void* const> levels, Dtype kept, const void* gradient,
                 std::int64_t count) const {
    switch (kept) {
      case Dtype::bf16: return fold_typed<From, Bf16>(how, levels, gradient, count);
      case Dtype::f16: return fold_typed<From, Fp16>(how, levels, gradient, count);
      default: return fold_typed<From, float>(how, levels, gradient, count);
    }
  }
  template <class T>
  void squares(const void* values, std::int64_t count, std::int64_t* limbs) const {
    launch_.sums((count + kSquareBlock - 1) / kSquareBlock, SquareBlocks<T>{static_cast<const T*>(values), count},
                 kSquareLimbs, limbs);
  }

  Launch launch_;
};

}  // namespace zero::grid
