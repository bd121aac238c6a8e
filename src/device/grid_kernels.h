// The kernels of a device that computes each element in a thread of its own. They are launched by `Launch`, a value:
//   elements(count, body)        body(i) for i in [0, count)
//   blocks(count, body)          for each block b and each thread t of kStateBlock: body.load(b, t, state), which says
//                                whether there is such an element; then, when the whole block has, body.store(b, t,
//                                state, largest) with the largest of the state's magnitudes in the block
//   sums(count, body, n, out)    body(i, add), where add(k, value) adds to out[k], k < n, in any order
//   most(count, body, out, also) *out and, unless it is null, *also grow to the largest body(i), an int32
// Bodies are copied to the device: they hold pointers of its memory, and numbers. Their bits are those of
// host_kernels.cpp. No torch.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <type_traits>
#include <utility>
#include <variant>

#include "base/blockwise.h"
#include "base/codec.h"
#include "base/error_feedback.h"
#include "base/exact_sum.h"
#include "base/float8.h"
#include "base/targets.h"
#include "device/cases.h"
#include "device/kernels.h"

namespace zero::grid {

// As many as a tree over 2^63 micro-batches joins.
inline constexpr std::size_t kMostSources = 64;

template <class From, class Kept>
struct AccumulateElements {
  using To = decltype(widen(From{}));
  std::array<const Kept*, kMostSources> sources;
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
struct ReadElements {
  Weights weights;
  T* out;
  ZERO_BOTH void operator()(std::int64_t i) const { out[i] = weights.load(i); }
};

// A thread for each block.
template <class Codec, class T>
struct EncodeBlocks {
  const T *values, *base;
  std::uint8_t *heads, *codes;
  std::int64_t count;
  ZERO_BOTH void operator()(std::int64_t block) const {
    const std::int64_t begin = block * Codec::kBlock, n = std::min(std::int64_t{Codec::kBlock}, count - begin);
    if (base == nullptr) return encode(values + begin, n, block);
    float differences[Codec::kBlock];
    for (std::int64_t i = 0; i < n; ++i) differences[i] = arrays::difference_of(values[begin + i], base[begin + i]);
    encode(differences, n, block);
  }
  template <class From>
  ZERO_BOTH void encode(const From* from, std::int64_t n, std::int64_t block) const {
    Codec::encode(from, n, codes + block * Codec::kBlock * Codec::kBits / 8, heads + block * Codec::kHead);
  }
};

// A thread for each span.
template <class Codec, class T>
struct EncodeSpans {
  const T* values;
  feedback::Coded to, errors;
  std::int64_t count;
  ZERO_BOTH void operator()(std::int64_t span) const {
    const std::int64_t begin = span * feedback::kSpan<Codec>;
    feedback::encode<Codec>(values + begin, std::min(feedback::kSpan<Codec>, count - begin),
                            to.template from<Codec>(begin), errors.template from<ErrorBlocks>(begin));
  }
};

template <class Codec, class T>
struct DecodeElements {
  const std::uint8_t *heads, *codes;
  T* values;
  std::int64_t count;
  bool adds;
  ZERO_BOTH void operator()(std::int64_t i) const {
    const std::int64_t block = i / Codec::kBlock, begin = block * Codec::kBlock;
    const std::int64_t n = std::min(std::int64_t{Codec::kBlock}, count - begin);
    const auto decode = [&](auto* to) {
      Codec::decode(codes + begin * Codec::kBits / 8, heads + block * Codec::kHead, n, i - begin, 1, to);
    };
    if (!adds) return decode(values + i);
    float decoded;
    decode(&decoded);
    arrays::add_difference(decoded, values[i]);
  }
};

struct StartElements {
  const float* values;
  Bf16* compensation;
  ZERO_BOTH void operator()(std::int64_t i) const { arrays::start_compensation(values[i], compensation[i]); }
};

struct ResetElements {
  const Bf16* written;
  Bf16* compensation;
  ZERO_BOTH void operator()(std::int64_t i) const { arrays::reset_compensation(written[i], compensation[i]); }
};

template <class Stored>
struct AdoptElements {
  const Stored* written;
  float* main;
  ZERO_BOTH void operator()(std::int64_t i) const { arrays::adopt_written(written[i], main[i]); }
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
struct ToFloat8Elements {
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
struct FromFloat8Elements {
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

  void run(const OwnKernel& kernel) const {
    std::visit([this](const auto& each) { this->compute(each); }, kernel);
  }

 private:
  void compute(const Accumulate& k) const {
    cases::with_types(k, [&]<class From, class Kept>(From, Kept) {
      AccumulateElements<From, Kept> body{
          {}, static_cast<int>(k.sources.size()), static_cast<Kept*>(k.target), static_cast<const From*>(k.gradient)};
      for (std::size_t i = 0; i < k.sources.size(); ++i) body.sources.at(i) = static_cast<const Kept*>(k.sources[i]);
      launch_.elements(k.count, body);
    });
  }
  void compute(const AddSquares& k) const {
    cases::with_float(k.dtype, [&]<class T>(T) {
      launch_.sums((k.count + kSquareBlock - 1) / kSquareBlock,
                   SquareBlocks<T>{static_cast<const T*>(k.values), k.count}, kSquareLimbs, k.limbs);
    });
  }
  void compute(const Update& k) const {
    cases::with_weights(k.factors, k.range, [&]<class Weights>(const Weights& weights) {
      cases::run<cases::Wide<Weights>>(k, weights, Sweeps<Launch>{launch_});
    });
  }
  void compute(const ReadWeights& k) const {
    cases::with_weights({}, k.range, [&]<class Weights>(const Weights& weights) {
      using T = cases::Wide<Weights>;
      launch_.elements(k.range.count, ReadElements<T, Weights>{weights, static_cast<T*>(k.weights)});
    });
  }
  void compute(const UpdateMoments& k) const { cases::run(k, Sweeps<Launch>{launch_}); }
  void compute(const ApplyStep& k) const {
    cases::with_weights(k.factors, k.range, [&]<class Weights>(const Weights& weights) {
      using T = cases::Wide<Weights>;
      using Along = rules::Along<T>;
      using None = arrays::Values<T>;
      launch_.elements(k.range.count, UpdateElements<Along, T, arrays::Values<const T>, Weights, None>{
                                          {static_cast<T>(k.kept), static_cast<T>(k.size)},
                                          T{1},
                                          {static_cast<const T*>(k.step)},
                                          weights,
                                          {},
                                          {},
                                          {}});
    });
  }
  void compute(const StartCompensation& k) const {
    launch_.elements(k.count, StartElements{static_cast<const float*>(k.values), static_cast<Bf16*>(k.compensation)});
  }
  void compute(const ResetCompensation& k) const {
    launch_.elements(k.count, ResetElements{static_cast<const Bf16*>(k.written), static_cast<Bf16*>(k.compensation)});
  }
  void compute(const AdoptWritten& k) const {
    cases::with_narrow(k.stored, [&]<class Stored>(Stored) {
      launch_.elements(k.count,
                       AdoptElements<Stored>{static_cast<const Stored*>(k.written), static_cast<float*>(k.main)});
    });
  }
  void compute(const Encode& k) const {
    with_codec(k.codec, [&]<class Codec>(Codec) {
      const std::int64_t heads = bytes_of_heads<Codec>(k.count);
      cases::with_single(k.dtype, [&]<class T>(T) {
        const auto* const values = static_cast<const T*>(k.values);
        constexpr std::int64_t span = feedback::kSpan<Codec>;
        if (k.errors != nullptr)
          launch_.elements((k.count + span - 1) / span,
                           EncodeSpans<Codec, T>{values, feedback::coded<Codec>(k.codes, k.count),
                                                 feedback::coded<ErrorBlocks>(k.errors, k.count), k.count});
        else
          launch_.elements(
              (k.count + Codec::kBlock - 1) / Codec::kBlock,
              EncodeBlocks<Codec, T>{values, static_cast<const T*>(k.base), k.codes, k.codes + heads, k.count});
      });
    });
  }
  void compute(const Decode& k) const {
    with_codec(k.codec, [&]<class Codec>(Codec) {
      const std::uint8_t* const codes = k.codes + bytes_of_heads<Codec>(k.count);
      cases::with_single(k.dtype, [&]<class T>(T) {
        launch_.elements(k.count, DecodeElements<Codec, T>{k.codes, codes, static_cast<T*>(k.values), k.count, k.adds});
      });
    });
  }
  void compute(const FindLargest& k) const {
    cases::with_single(k.dtype, [&]<class T>(T) {
      launch_.most(k.count, Magnitudes<T>{static_cast<const T*>(k.values)}, reinterpret_cast<std::int32_t*>(k.largest),
                   reinterpret_cast<std::int32_t*>(k.noted));
    });
  }
  void compute(const ToFloat8& k) const {
    cases::with_single(k.dtype, [&]<class T>(T) {
      cases::with_codes(k.format, [&]<class Format>(Format) {
        launch_.elements(std::max(k.count, std::int64_t{1}),
                         ToFloat8Elements<T, Format>{static_cast<const T*>(k.values), k.count, k.given, k.scale,
                                                     reinterpret_cast<Format*>(k.codes)});
      });
    });
  }
  void compute(const FromFloat8& k) const {
    cases::with_codes(k.format, [&]<class Format>(Format) {
      launch_.elements(
          k.count, FromFloat8Elements<Format>{reinterpret_cast<const Format*>(k.codes), static_cast<Bf16*>(k.values)});
    });
  }

  Launch launch_;
};

}  // namespace zero::grid
