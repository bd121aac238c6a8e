#include "device/update.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <type_traits>

#include "base/blockwise.h"
#include "base/half.h"
#include "base/random.h"
#include "base/simd.h"
#include "device/arrays.h"
#include "device/rules.h"
#include "partition/moments.h"

namespace zero {
namespace {

using namespace arrays;

// Elements that a loop takes at most: its index then fits the lanes of fp32.
constexpr std::int64_t kSweep = std::int64_t{1} << 30;

// The one loop of all optimizers; `a`, `b` and `c` are moments. At most kSweep elements.
template <class Rule, class T, class Weights, class Moments>
ZERO_MULTIVERSION void sweep(const Rule rule, const T scale, const T* const gradient, const Weights weights,
                             const Moments first, const Moments second, const Moments third, const std::int64_t n) {
  const auto count = static_cast<std::int32_t>(n);
#pragma GCC ivdep
  for (std::int32_t i = 0; i < count; ++i) {
    const T g = gradient[i] * scale;
    T w = weights.load(i);
    if constexpr (Rule::kMoments == 0) {
      w = rule(w, g);
    } else {
      [[maybe_unused]] T a = first.load(i), b{}, c{};
      if constexpr (Rule::kMoments > 1) b = second.load(i);
      if constexpr (Rule::kMoments > 2) c = third.load(i);
      if constexpr (Rule::kMoments == 1) w = rule(w, g, a);
      if constexpr (Rule::kMoments == 2) w = rule(w, g, a, b);
      if constexpr (Rule::kMoments == 3) w = rule(w, g, a, b, c);
      first.store(a, i);
      if constexpr (Rule::kMoments > 1) second.store(b, i);
      if constexpr (Rule::kMoments > 2) third.store(c, i);
    }
    weights.store(w, i);
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

template <class T, class Use>
void with_rule(const Sgd& o, const UpdateFactors& f, const Use& use) {
  const T decay = static_cast<T>(o.weight_decay), lr = static_cast<T>(f.lr);
  if (o.momentum == 0) return use(rules::Descent<T>{decay, lr});
  const T momentum = static_cast<T>(o.momentum), one = 1;
  const bool first = f.step == 1;  // which leaves the gradient undampened
  use(rules::Momentum<T>{decay, first ? 0 : momentum, first ? one : static_cast<T>(1 - o.dampening),
                         o.nesterov ? one : 0, o.nesterov ? momentum : one, lr});
}

template <class T, class Use>
void with_rule(const AdaGrad& o, const UpdateFactors& f, const Use& use) {
  const double lr = f.lr / (1 + static_cast<double>(f.step - 1) * o.lr_decay);
  use(rules::AdaGrad<T>{static_cast<T>(o.weight_decay), static_cast<T>(o.eps), static_cast<T>(lr)});
}

template <class T, class Use>
void with_rule(const RmsProp& o, const UpdateFactors& f, const Use& use) {
  const rules::RootMeanSquare<T> mean{static_cast<T>(o.weight_decay), static_cast<T>(o.alpha),
                                      static_cast<T>(1 - o.alpha), static_cast<T>(o.eps_inside_root ? o.eps : 0),
                                      static_cast<T>(o.eps_inside_root ? 0 : o.eps)};
  const T lr = static_cast<T>(f.lr), momentum = static_cast<T>(o.momentum);
  if (o.momentum != 0)
    return o.centered ? use(rules::RmsPropCenteredMomentum<T>{mean, lr, momentum})
                      : use(rules::RmsPropMomentum<T>{mean, lr, momentum});
  return o.centered ? use(rules::RmsPropCentered<T>{mean, lr}) : use(rules::RmsProp<T>{mean, lr});
}

template <class T, class O>
rules::Moments<T> adam_moments(const O& o, const UpdateFactors& f) {
  const auto t = static_cast<double>(f.step);
  const double correction1 = 1 - std::pow(o.beta1, t);
  const double correction2 = 1 - std::pow(o.beta2, t);
  return {static_cast<T>(o.beta1),
          static_cast<T>(1 - o.beta1),
          static_cast<T>(o.beta2),
          static_cast<T>(1 - o.beta2),
          static_cast<T>(std::sqrt(correction2)),
          static_cast<T>(o.eps),
          static_cast<T>(f.lr / correction1)};
}

template <class T, class Use>
void with_adam(const rules::Moments<T>& moments, bool amsgrad, double decay, double kept, const Use& use) {
  if (amsgrad) return use(rules::AdamMax<T>{moments, static_cast<T>(decay), static_cast<T>(kept)});
  use(rules::Adam<T>{moments, static_cast<T>(decay), static_cast<T>(kept)});
}

template <class T, class Use>
void with_rule(const Adam& o, const UpdateFactors& f, const Use& use) {
  with_adam<T>(adam_moments<T>(o, f), o.amsgrad, o.weight_decay, 1, use);
}

template <class T, class Use>
void with_rule(const AdamW& o, const UpdateFactors& f, const Use& use) {
  with_adam<T>(adam_moments<T>(o, f), o.amsgrad, 0, 1 - (o.decay_by_lr ? f.lr : 1) * o.weight_decay, use);
}

template <class T, class Use>
void with_rule(const Lion& o, const UpdateFactors& f, const Use& use) {
  use(rules::Lion<T>{static_cast<T>(o.beta1), static_cast<T>(1 - o.beta1), static_cast<T>(o.beta2),
                     static_cast<T>(1 - o.beta2), static_cast<T>(1 - f.lr * o.weight_decay), static_cast<T>(f.lr)});
}

template <class T, class Use>
void with_input_rule(const Muon& o, const UpdateFactors&, const Use& use) {
  const T momentum = static_cast<T>(o.momentum), rest = static_cast<T>(1 - o.momentum);
  use(rules::MuonInput<T>{rest, o.nesterov ? rest : 0, o.nesterov ? momentum : 1});
}

template <class T, class Use>
void with_input_rule(const Lamb& o, const UpdateFactors& f, const Use& use) {
  const double correction = 1 - std::pow(o.beta1, static_cast<double>(f.step));
  use(rules::LambStep<T>{adam_moments<T>(o, f), static_cast<T>(o.weight_decay), static_cast<T>(1 / correction)});
}

template <class T, class Use>
void with_input_rule(const Adafactor& o, const UpdateFactors& f, const Use& use) {
  if (o.factored) return use(rules::Gradient<T>{});
  const double rest = std::pow(static_cast<double>(f.step), o.beta2_decay);
  use(rules::AdafactorStep<T>{static_cast<T>(rest), static_cast<T>(o.eps_square * o.eps_square)});
}

// The signs of an optimizer's moments: all but the first are means of squares.
constexpr Signs signs_of(std::size_t moment) {
  return moment == 0 ? Signs::both : Signs::positive;
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

// A stream of random bits for each array that is rounded at random. Elements 2^32 apart share theirs.
RoundedAtRandom at_random(void* array, std::uint64_t stream, const UpdateFactors& f, const UpdateRange& r) {
  return {static_cast<Bf16*>(array), random_key(derived(f.seed, stream)), static_cast<std::uint32_t>(r.first)};
}

constexpr auto kNobody = [](const auto&) {};

template <class O, class T>
concept ByElement = requires(const O& o, const UpdateFactors& f) {
  with_rule<T>(o, f, kNobody);
};
template <class O, class T>
concept AsWhole = requires(const O& o, const UpdateFactors& f) {
  with_input_rule<T>(o, f, kNobody);
};
// An optimizer of ours has one of these rules, LibTorch's are brought with theirs.
template <class O, class T>
constexpr bool kHasRule = ByElement<O, T> != AsWhole<O, T> || std::is_same_v<O, TorchOptimizer>;

template <class T, class Weights>
void run(const Optimizer& optimizer, const UpdateFactors& f, const UpdateRange& r, const Weights& weights) {
  const auto scale = static_cast<T>(f.scale);
  const auto wide = [&](const auto& rule) {
    const auto moment = [&](std::size_t i) { return Values<T>{static_cast<T*>(r.moments[i])}; };
    sweep_range(rule, r, scale, weights, moment(0), moment(1), moment(2));
  };
  const auto in_format = [&](const auto& rule, [[maybe_unused]] MomentFormat format) {
    if constexpr (std::is_same_v<T, float>) {
      if (format == MomentFormat::block8) return sweep_blocks(rule, r, scale, weights);
      const auto moment = [&](std::size_t i) { return at_random(r.moments[i], i + 1, f, r); };
      if (format == MomentFormat::bf16) return sweep_range(rule, r, scale, weights, moment(0), moment(1), moment(2));
    }
    wide(rule);
  };
  const auto with_format = [&]<class O>(const O& o) {
    static_assert(kHasRule<O, T>, "an optimizer needs a rule: with_rule(), or with_input_rule() for whole tensors");
    if constexpr (requires { o.format; }) {
      with_rule<T>(o, f, [&](const auto& rule) { in_format(rule, o.format); });
    } else if constexpr (ByElement<O, T>) {
      with_rule<T>(o, f, wide);
    }
  };
  std::visit(with_format, optimizer);
}

// Calls `use` with the weights of the range.
template <class Use>
void with_weights(const UpdateFactors& f, const UpdateRange& r, const Use& use) {
  auto* const main = static_cast<float*>(r.main);
  auto* const bf16 = static_cast<Bf16*>(r.parameter);
  if (r.dtype == Dtype::f64) return use(Values<double>{static_cast<double*>(r.main)});
  switch (r.remainder) {
    case Remainder::lost: return use(Rounded{bf16});
    case Remainder::random: return use(at_random(bf16, 0, f, r));
    case Remainder::kept: return use(Compensated{bf16, static_cast<Bf16*>(r.rest)});
    case Remainder::main_weights: break;
  }
  if (r.dtype == Dtype::bf16) return use(MainWeights<Bf16>{main, bf16});
  if (r.dtype == Dtype::f16) return use(MainWeights<Fp16>{main, static_cast<Fp16*>(r.parameter)});
  use(Values<float>{main});
}

template <class Weights>
using Wide = decltype(std::declval<Weights>().load(0));

template <class T, class Out>
void update_moments_into(const Optimizer& optimizer, const UpdateFactors& f, const UpdateRange& r, const T* weights,
                         const Out& out) {
  const auto moment = [&](std::size_t i) { return Values<T>{static_cast<T*>(r.moments[i])}; };
  const auto sweep_from = [&](const auto& in, const auto& rule) {
    const Aside<std::decay_t<decltype(in)>, Out> aside{in, out};
    sweep_range(rule, r, static_cast<T>(f.scale), aside, moment(0), moment(1), moment(2));
  };
  const auto sweep_with = [&](const auto& rule) {
    if (weights == nullptr) return sweep_from(Zeros<T>{}, rule);
    sweep_from(Values<const T>{weights}, rule);
  };
  const auto with_input = [&]<class O>(const O& o) {
    if constexpr (AsWhole<O, T>) with_input_rule<T>(o, f, sweep_with);
  };
  std::visit(with_input, optimizer);
}

void* moved(void* array, std::int64_t elements, Dtype dtype) {
  return array == nullptr ? nullptr : static_cast<char*>(array) + elements * size_of(dtype);
}

}  // namespace

void update(const Optimizer& optimizer, const UpdateFactors& f, const UpdateRange& r) {
  with_weights(f, r,
               [&](const auto& weights) { run<Wide<std::decay_t<decltype(weights)>>>(optimizer, f, r, weights); });
}

void read_weights(const UpdateRange& r, void* out) {
  with_weights({}, r, [&](const auto& weights) {
    using T = Wide<std::decay_t<decltype(weights)>>;
    copy(weights, static_cast<T*>(out), r.count);
  });
}

void update_moments(const Optimizer& optimizer, const UpdateFactors& f, const UpdateRange& r, const void* weights,
                    void* input, Dtype input_dtype) {
  if (r.dtype == Dtype::f64)
    return update_moments_into(optimizer, f, r, static_cast<const double*>(weights),
                               Values<double>{static_cast<double*>(input)});
  const auto* const read = static_cast<const float*>(weights);
  if (input_dtype == Dtype::bf16) return update_moments_into(optimizer, f, r, read, Rounded{static_cast<Bf16*>(input)});
  update_moments_into(optimizer, f, r, read, Values<float>{static_cast<float*>(input)});
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
