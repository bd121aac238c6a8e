#include "engine/update.h"

#include <cmath>
#include <type_traits>

#include "base/half.h"
#include "base/simd.h"

namespace zero {
namespace {

template <class T>
struct AdamWFactors {
  T scale, decay, beta1, rest1, beta2, rest2, root, eps, step_size;
};

template <class T>
struct SgdFactors {
  T scale, decay, momentum, rest, lr;
  bool nesterov, first;
};

// Where the updated value goes besides the main weights.
struct Nowhere {};
template <class T, class Out>
inline void store(T value, Out* out, std::int64_t i) {
  if constexpr (!std::is_same_v<Out, Nowhere>) narrow(value, out[i]);
}

template <class T, class Out>
ZERO_MULTIVERSION void adamw(const AdamWFactors<T>& f, T* __restrict p, const T* __restrict g, T* __restrict m,
                             T* __restrict v, Out* __restrict out, std::int64_t n) {
#pragma GCC ivdep
  for (std::int64_t i = 0; i < n; ++i) {
    const T grad = g[i] * f.scale;
    const T decayed = p[i] * f.decay;
    m[i] = m[i] * f.beta1 + grad * f.rest1;
    v[i] = v[i] * f.beta2 + grad * grad * f.rest2;
    p[i] = decayed - f.step_size * (m[i] / (std::sqrt(v[i]) / f.root + f.eps));
    store(p[i], out, i);
  }
}

template <class T, class Out>
ZERO_MULTIVERSION void sgd(const SgdFactors<T>& f, T* __restrict p, const T* __restrict g, Out* __restrict out,
                           std::int64_t n) {
#pragma GCC ivdep
  for (std::int64_t i = 0; i < n; ++i) {
    p[i] = p[i] - f.lr * (g[i] * f.scale + p[i] * f.decay);
    store(p[i], out, i);
  }
}

template <class T, class Out>
ZERO_MULTIVERSION void momentum(const SgdFactors<T>& f, T* __restrict p, const T* __restrict g, T* __restrict m,
                                Out* __restrict out, std::int64_t n) {
  const T kept = f.first ? T{0} : f.momentum;
  const T added = f.first ? T{1} : f.rest;
  const T look_ahead = f.nesterov ? f.momentum : T{1};
  const T direct = f.nesterov ? T{1} : T{0};
#pragma GCC ivdep
  for (std::int64_t i = 0; i < n; ++i) {
    const T grad = g[i] * f.scale + p[i] * f.decay;
    m[i] = m[i] * kept + grad * added;
    p[i] = p[i] - f.lr * (grad * direct + m[i] * look_ahead);
    store(p[i], out, i);
  }
}

template <class T, class Out>
void run(const AdamWFactors<T>& f, const UpdateRange& r, Out* out) {
  adamw(f, static_cast<T*>(r.main), static_cast<const T*>(r.gradient), static_cast<T*>(r.moments[0]),
        static_cast<T*>(r.moments[1]), out, r.count);
}

template <class T, class Out>
void run(const SgdFactors<T>& f, const UpdateRange& r, Out* out) {
  T* p = static_cast<T*>(r.main);
  const T* g = static_cast<const T*>(r.gradient);
  if (r.moments[0] == nullptr) return sgd(f, p, g, out, r.count);
  momentum(f, p, g, static_cast<T*>(r.moments[0]), out, r.count);
}

template <class T>
AdamWFactors<T> factors_of(const AdamW& o, const UpdateFactors& f) {
  const auto t = static_cast<double>(f.step);
  const double correction1 = 1 - std::pow(o.beta1, t);
  const double correction2 = 1 - std::pow(o.beta2, t);
  return {static_cast<T>(f.scale),
          static_cast<T>(1 - f.lr * f.weight_decay),
          static_cast<T>(o.beta1),
          static_cast<T>(1 - o.beta1),
          static_cast<T>(o.beta2),
          static_cast<T>(1 - o.beta2),
          static_cast<T>(std::sqrt(correction2)),
          static_cast<T>(o.eps),
          static_cast<T>(f.lr / correction1)};
}

template <class T>
SgdFactors<T> factors_of(const Sgd& o, const UpdateFactors& f) {
  return {static_cast<T>(f.scale),
          static_cast<T>(f.weight_decay),
          static_cast<T>(o.momentum),
          static_cast<T>(1 - o.dampening),
          static_cast<T>(f.lr),
          o.nesterov,
          f.step == 1};
}

}  // namespace

void update(const Optimizer& optimizer, const UpdateFactors& factors, const UpdateRange& range) {
  std::visit(
      [&](const auto& o) {
        const auto f = factors_of<float>(o, factors);
        switch (range.dtype) {
          case Dtype::f64: return run(factors_of<double>(o, factors), range, static_cast<Nowhere*>(nullptr));
          case Dtype::bf16: return run(f, range, static_cast<Bf16*>(range.parameter));
          case Dtype::f16: return run(f, range, static_cast<Fp16*>(range.parameter));
          default: return run(f, range, static_cast<Nowhere*>(nullptr));
        }
      },
      optimizer);
}

}  // namespace zero
