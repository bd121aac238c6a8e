// The cases of a kernel, on the host and on a grid: the types of its operands; of an update, which rule an optimizer
// goes by and in which arrays weights and moments are, whatever sweeps over them. No torch.
#pragma once

#include <cmath>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "base/blockwise.h"
#include "base/random.h"
#include "device/arrays.h"
#include "device/kernels.h"
#include "device/rules.h"

namespace zero::cases {

using namespace arrays;

// use(T{}) with the type of a dtype, which is bf16 or f16.
template <class Use>
void with_narrow(Dtype dtype, const Use& use) {
  if (dtype == Dtype::bf16) return use(Bf16{});
  use(Fp16{});
}
// As with_narrow(), or f32.
template <class Use>
void with_single(Dtype dtype, const Use& use) {
  if (dtype == Dtype::f32) return use(float{});
  with_narrow(dtype, use);
}
// As with_single(), or f64.
template <class Use>
void with_float(Dtype dtype, const Use& use) {
  if (dtype == Dtype::f64) return use(double{});
  with_single(dtype, use);
}
// use(T{}) with the type of codes in FP8.
template <class Use>
void with_codes(Float8Format format, const Use& use) {
  if (format == Float8Format::e4m3) return use(E4m3{});
  use(E5m2{});
}
// use(From{}, Kept{}) with the types of a gradient and of its sums.
template <class Use>
void with_types(const Accumulate& k, const Use& use) {
  if (k.dtype == Dtype::f64) return use(double{}, double{});
  with_single(k.dtype, [&](auto from) { with_single(k.kept, [&](auto kept) { use(from, kept); }); });
}

// What a rule makes of one element; `a`, `b` and `c` are moments.
template <class Rule, class T, class Weights, class Moments>
ZERO_BOTH inline void update_element(const Rule& rule, const T g, const Weights& weights, const Moments& first,
                                     const Moments& second, const Moments& third, const std::int64_t i) {
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

// A stream of random bits for each array that is rounded at random. Elements 2^32 apart share theirs.
inline RoundedAtRandom at_random(void* array, std::uint64_t stream, const UpdateFactors& f, const UpdateRange& r) {
  return {static_cast<Bf16*>(array), random_key(derived(f.seed, stream)), static_cast<std::uint32_t>(r.first)};
}

inline constexpr auto kNobody = [](const auto&) {};

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

// `sweeps` has range(rule, r, scale, weights, first, second, third), with moments in arrays, and blocks(rule, r, scale,
// weights), with moments in codes.
template <class T, class Weights, class Sweeps>
void run(const Update& kernel, const Weights& weights, const Sweeps& sweeps) {
  const UpdateFactors& f = kernel.factors;
  const UpdateRange& r = kernel.range;
  const auto scale = static_cast<T>(f.scale);
  const auto wide = [&](const auto& rule) {
    const auto moment = [&](std::size_t i) { return Values<T>{static_cast<T*>(r.moments[i])}; };
    sweeps.range(rule, r, scale, weights, moment(0), moment(1), moment(2));
  };
  const auto in_format = [&](const auto& rule, [[maybe_unused]] MomentFormat format) {
    if constexpr (std::is_same_v<T, float>) {
      if (format == MomentFormat::block8) return sweeps.blocks(rule, r, scale, weights);
      const auto moment = [&](std::size_t i) { return at_random(r.moments[i], i + 1, f, r); };
      if (format == MomentFormat::bf16) return sweeps.range(rule, r, scale, weights, moment(0), moment(1), moment(2));
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
  std::visit(with_format, kernel.optimizer);
}

template <class T, class Out, class Sweeps>
void run_into(const Out& out, const UpdateMoments& k, const Sweeps& sweeps) {
  const auto* const weights = static_cast<const T*>(k.weights);
  const auto moment = [&](std::size_t i) { return Values<T>{static_cast<T*>(k.range.moments[i])}; };
  const auto sweep_from = [&](const auto& in, const auto& rule) {
    const Aside<std::decay_t<decltype(in)>, Out> aside{in, out};
    sweeps.range(rule, k.range, static_cast<T>(k.factors.scale), aside, moment(0), moment(1), moment(2));
  };
  const auto sweep_with = [&](const auto& rule) {
    if (weights == nullptr) return sweep_from(Zeros<T>{}, rule);
    sweep_from(Values<const T>{weights}, rule);
  };
  const auto with_input = [&]<class O>(const O& o) {
    if constexpr (AsWhole<O, T>) with_input_rule<T>(o, k.factors, sweep_with);
  };
  std::visit(with_input, k.optimizer);
}

template <class Sweeps>
void run(const UpdateMoments& k, const Sweeps& sweeps) {
  if (k.range.dtype == Dtype::f64) return run_into<double>(Values<double>{static_cast<double*>(k.input)}, k, sweeps);
  if (k.input_dtype == Dtype::bf16) return run_into<float>(Rounded{static_cast<Bf16*>(k.input)}, k, sweeps);
  run_into<float>(Values<float>{static_cast<float*>(k.input)}, k, sweeps);
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
    case Remainder::kept: return use(Compensated{bf16, static_cast<Bf16*>(r.compensation)});
    case Remainder::main_weights: break;
  }
  if (r.dtype == Dtype::bf16) return use(MainWeights<Bf16>{main, bf16});
  if (r.dtype == Dtype::f16) return use(MainWeights<Fp16>{main, static_cast<Fp16*>(r.parameter)});
  use(Values<float>{main});
}

template <class Weights>
using Wide = decltype(std::declval<Weights>().load(0));

}  // namespace zero::cases
