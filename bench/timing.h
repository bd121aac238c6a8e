// What the benchmarks share: contenders that take turns, medians, ratios round by round, verdicts.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "base/targets.h"

namespace bench {

using Clock = std::chrono::steady_clock;

inline double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

inline double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// One after the other in every round, so that a machine that changes its speed changes it for all.
class Contest {
 public:
  // The contender's number.
  std::size_t add(std::string name, std::function<void()> work) {
    contenders_.push_back({std::move(name), std::move(work), {}});
    return contenders_.size() - 1;
  }

  void run(int rounds, int warm_ups = 2) {
    for (int round = -warm_ups; round < rounds; ++round)
      for (Contender& contender : contenders_) {
        const auto start = Clock::now();
        contender.work();
        if (round >= 0) contender.seconds.push_back(seconds_since(start));
      }
  }

  std::size_t size() const { return contenders_.size(); }
  const std::string& name(std::size_t i) const { return contenders_[i].name; }
  double seconds(std::size_t i) const { return median(contenders_[i].seconds); }

  // Of all these together: the median over the rounds.
  double seconds(const std::vector<std::size_t>& members) const {
    std::vector<double> sums;
    for (std::size_t round = 0; round < rounds(); ++round) sums.push_back(total(members, round));
    return median(sums);
  }

  // Of each round, the lowest first: the seconds of all of `slow` over those of all of `fast`.
  std::vector<double> ratios(const std::vector<std::size_t>& slow, const std::vector<std::size_t>& fast) const {
    std::vector<double> sorted;
    for (std::size_t round = 0; round < rounds(); ++round) sorted.push_back(total(slow, round) / total(fast, round));
    std::sort(sorted.begin(), sorted.end());
    return sorted;
  }
  double ratio(const std::vector<std::size_t>& slow, const std::vector<std::size_t>& fast) const {
    return median(ratios(slow, fast));
  }

 private:
  struct Contender {
    std::string name;
    std::function<void()> work;
    std::vector<double> seconds;
  };

  std::size_t rounds() const { return contenders_[0].seconds.size(); }

  double total(const std::vector<std::size_t>& members, std::size_t round) const {
    double sum = 0;
    for (const std::size_t i : members) sum += contenders_[i].seconds[round];
    return sum;
  }

  std::vector<Contender> contenders_;
};

// Prints whether `value` reaches `least`.
inline void accept(const std::string& what, double value, double least) {
  std::printf("%s  %s: %.2f, at least %.2f\n", value >= least ? "PASS" : "FAIL", what.c_str(), value, least);
}

// The yardstick of memory bandwidth: 3 values of traffic an element.
template <class T>
ZERO_MULTIVERSION void triad(T* a, const T* b, const T* c, T s, std::int64_t n) {
#pragma GCC ivdep
  for (std::int64_t i = 0; i < n; ++i) a[i] = b[i] + s * c[i];
}

}  // namespace bench
