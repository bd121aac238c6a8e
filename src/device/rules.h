// One element of each optimizer: the new weight from the weight, its gradient and its moments. A rule's
// constants are computed once for a range. The forms are LibTorch's, down to where it rounds: its sum of a
// tensor and a scaled one, and addcmul, are fused multiply-adds, addcdiv is not. No torch.
#pragma once

#include <algorithm>
#include <cmath>

#include "base/targets.h"

namespace zero::rules {

template <class T>
struct Descent {
  static constexpr int kMoments = 0;
  T decay, lr;

  ZERO_BOTH T operator()(T p, T g) const { return std::fma(std::fma(p, decay, g), -lr, p); }
};

// Nesterov: `direct` and `ahead` are 1 and the momentum, else 0 and 1.
template <class T>
struct Momentum {
  static constexpr int kMoments = 1;
  T decay, kept, added, direct, ahead, lr;

  ZERO_BOTH T operator()(T p, T gradient, T& m) const {
    const T g = std::fma(p, decay, gradient);
    m = std::fma(g, added, m * kept);
    return std::fma(std::fma(m, ahead, g * direct), -lr, p);
  }
};

template <class T>
struct AdaGrad {
  static constexpr int kMoments = 1;
  T decay, eps, lr;

  ZERO_BOTH T operator()(T p, T gradient, T& sum) const {
    const T g = std::fma(p, decay, gradient);
    sum = std::fma(g, g, sum);
    return p + (-lr * g) / (std::sqrt(sum) + eps);
  }
};

// Epsilon is added to the root or under it; the other of the two is 0.
template <class T>
struct RootMeanSquare {
  T decay, alpha, rest, under, outside;

  ZERO_BOTH T decayed(T p, T g) const { return std::fma(p, decay, g); }
  ZERO_BOTH T root(T g, T& square) const {
    square = std::fma(rest * g, g, square * alpha);
    return std::sqrt(square + under) + outside;
  }
  // Of the variance, which rounding alone could make negative.
  ZERO_BOTH T root(T g, T& square, T& mean) const {
    square = std::fma(rest * g, g, square * alpha);
    mean = std::fma(g, rest, mean * alpha);
    return std::sqrt(std::max(T{0}, std::fma(-mean, mean, square)) + under) + outside;
  }
};

template <class T>
struct RmsProp : RootMeanSquare<T> {
  static constexpr int kMoments = 1;
  T lr;

  ZERO_BOTH T operator()(T p, T gradient, T& square) const {
    const T g = this->decayed(p, gradient);
    return p + (-lr * g) / this->root(g, square);
  }
};

template <class T>
struct RmsPropCentered : RootMeanSquare<T> {
  static constexpr int kMoments = 2;
  T lr;

  ZERO_BOTH T operator()(T p, T gradient, T& square, T& mean) const {
    const T g = this->decayed(p, gradient);
    return p + (-lr * g) / this->root(g, square, mean);
  }
};

template <class T>
struct RmsPropMomentum : RootMeanSquare<T> {
  static constexpr int kMoments = 2;
  T lr, momentum;

  ZERO_BOTH T operator()(T p, T gradient, T& square, T& m) const {
    const T g = this->decayed(p, gradient);
    m = m * momentum + g / this->root(g, square);
    return std::fma(m, -lr, p);
  }
};

template <class T>
struct RmsPropCenteredMomentum : RootMeanSquare<T> {
  static constexpr int kMoments = 3;
  T lr, momentum;

  ZERO_BOTH T operator()(T p, T gradient, T& square, T& m, T& mean) const {
    const T g = this->decayed(p, gradient);
    m = m * momentum + g / this->root(g, square, mean);
    return std::fma(m, -lr, p);
  }
};

// The bias corrections are in the step size and in `root`.
template <class T>
struct Moments {
  T beta1, rest1, beta2, rest2, root, eps, step_size;

  ZERO_BOTH void update_moments(T g, T& m, T& v) const {
    m = std::fma(g, rest1, m * beta1);
    v = std::fma(rest2 * g, g, v * beta2);
  }
  ZERO_BOTH T moved(T p, T m, T v) const { return p + (-step_size * m) / (std::sqrt(v) / root + eps); }
};

// `decay` is added to the gradient, `kept` is what decoupled decay leaves of a weight; 0 and 1 do nothing.
template <class T>
struct Adam : Moments<T> {
  static constexpr int kMoments = 2;
  T decay, kept;

  ZERO_BOTH T operator()(T p, T g, T& m, T& v) const {
    this->update_moments(std::fma(p, decay, g), m, v);
    return this->moved(p * kept, m, v);
  }
};

template <class T>
struct AdamMax : Moments<T> {
  static constexpr int kMoments = 3;
  T decay, kept;

  ZERO_BOTH T operator()(T p, T g, T& m, T& v, T& largest) const {
    this->update_moments(std::fma(p, decay, g), m, v);
    largest = std::max(largest, v);
    return this->moved(p * kept, m, largest);
  }
};

template <class T>
struct Lion {
  static constexpr int kMoments = 1;
  T beta1, rest1, beta2, rest2, kept, lr;

  ZERO_BOTH T operator()(T p, T g, T& m) const {
    const T blend = m * beta1 + g * rest1;
    m = std::fma(g, rest2, m * beta2);
    const T sign = static_cast<T>(blend > 0) - static_cast<T>(blend < 0);
    return std::fma(sign, -lr, p * kept);
  }
};

// The step is `size` times what another pass computed, in the place of the gradient.
template <class T>
struct Along {
  static constexpr int kMoments = 0;
  T kept, size;

  ZERO_BOTH T operator()(T p, T step) const { return std::fma(step, -size, p * kept); }
};

// Of optimizers over whole tensors: instead of the new weight they give that from which its step is computed.

template <class T>
struct Gradient {
  static constexpr int kMoments = 0;
  ZERO_BOTH T operator()(T, T g) const { return g; }
};

// Nesterov: `direct` and `ahead` are 1 - momentum and momentum, else 0 and 1.
template <class T>
struct MuonInput {
  static constexpr int kMoments = 1;
  T rest, direct, ahead;

  ZERO_BOTH T operator()(T, T g, T& m) const {
    m = std::fma(rest, g - m, m);
    return std::fma(m, ahead, g * direct);
  }
};

template <class T>
struct LambStep : Moments<T> {
  static constexpr int kMoments = 2;
  T decay, correction;

  ZERO_BOTH T operator()(T p, T g, T& m, T& v) const {
    this->update_moments(g, m, v);
    return std::fma(p, decay, (m * correction) / (std::sqrt(v) / this->root + this->eps));
  }
};

// Adafactor's of a tensor that is kept element by element; `least` is of a square.
template <class T>
struct AdafactorStep {
  static constexpr int kMoments = 1;
  T rest, least;

  ZERO_BOTH T operator()(T, T g, T& square) const {
    square = std::fma(rest, g * g - square, square);
    return g / std::sqrt(std::max(square, least));
  }
};

}  // namespace zero::rules
