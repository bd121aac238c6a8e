#include "cli/training/rates.h"

#include <ATen/Context.h>
#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <memory>
#include <vector>

#include "cli/report/middle.h"
#include "cli/training/collect.h"
#include "zero/engine.h"

namespace cli {
namespace {

constexpr int kRounds = 5;
constexpr double kLongEnough = 0.01;  // seconds
constexpr std::int64_t kLeastBytes = std::int64_t{1} << 22;
constexpr std::int64_t kMostElements = std::int64_t{1} << 28;
constexpr std::int64_t kThin = 16;  // columns of one that its operands' bytes decide
constexpr std::int64_t kHeads = 8, kHeadSize = 64;
constexpr std::int64_t kLongestChain = 1 << 14;
constexpr std::int64_t kExchanged = std::int64_t{1} << 24;  // parameters, at most
constexpr double kLeastPart = 0.1;                          // of a step that is exchange, where there is any

at::ScalarType type_of(zero::Precision precision) {
  switch (precision) {
    case zero::Precision::fp32: return at::kFloat;
    case zero::Precision::fp16: return at::kHalf;
    default: return at::kBFloat16;
  }
}

double size_of(const at::TensorOptions& options) {
  return static_cast<double>(options.dtype().itemsize());
}

// Before anything else is in it, and what was given back is.
std::int64_t share_of_memory(const zero::World& world, c10::Device where) {
  at::globalContext().lazyInitDevice(where.type());
  c10::impl::VirtualGuardImpl(where.type()).synchronizeDevice(where.index());
  constexpr auto kAll = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  c10::DeviceAllocator* const allocator = c10::getDeviceAllocator(where.type());
  const auto free = static_cast<std::int64_t>(allocator->getMemoryInfo(where.index()).first);
  const std::int64_t all = free + allocator->getDeviceStats(where.index()).reserved_bytes[kAll].current;
  const std::vector<std::int64_t> used = gather<std::int64_t>(world, {where.index()});
  return -largest(world, -all / std::ranges::count(used, where.index()));
}

// An engine and its module, all of it one parameter.
class OneParameter {
 public:
  OneParameter(const zero::World& world, c10::Device where, std::int64_t parameters)
      : values_(module_.register_parameter("values", at::zeros({parameters}, at::TensorOptions(where)))),
        engine_(module_, world, zero::Plan::ddp(), zero::AdamW{}) {}

  void backward() { engine_.backward(values_.sum()); }
  void step() { engine_.step(); }
  zero::Traffic traffic() const { return engine_.traffic(); }
  double update_bytes() const { return static_cast<double>(engine_.estimate().update_traffic); }

 private:
  torch::nn::Module module_;
  at::Tensor values_;
  zero::Engine engine_;
};

}  // namespace

double timed(const zero::World& world, const std::function<void()>& work, const std::function<void()>& before) {
  using Clock = std::chrono::steady_clock;
  std::vector<double> rounds;
  for (int round = 0; round <= kRounds; ++round) {
    before();
    world.communicator().barrier().wait();
    const auto begin = Clock::now();
    work();
    if (round > 0) rounds.push_back(std::chrono::duration<double>(Clock::now() - begin).count());
  }
  return largest(world, middle(rounds));
}

Rates::Rates(const zero::World& world, c10::Device where)
    : world_(world),
      where_(where),
      memory_(share_of_memory(world, where)),
      most_elements_(std::min(kMostElements, memory_ / 64)),
      widest_(static_cast<std::int64_t>(
          std::bit_floor(static_cast<std::uint64_t>(std::sqrt(static_cast<double>(most_elements_)))))) {}

void Rates::synchronize() const {
  c10::impl::VirtualGuardImpl(where_.type()).synchronizeDevice(where_.index());
}

double Rates::seconds_of(const Work& work) const {
  const auto ending = [this](const std::function<void()>& call) {
    return [this, &call] {
      call();
      synchronize();
    };
  };
  return timed(world_, ending(work.run), ending(work.before));
}

Rates::Timed Rates::sized(std::int64_t least, std::int64_t most, const Make& make) const {
  for (std::int64_t size = least;; size *= 2) {
    const double seconds = seconds_of(make(size));
    if (seconds >= kLongEnough || 2 * size > most) return {size, seconds};
  }
}

double Rates::copies() const {
  const at::TensorOptions bytes = at::TensorOptions(at::kByte).device(where_);
  const auto [size, seconds] = sized(kLeastBytes, 4 * most_elements_, [&](std::int64_t n) -> Work {
    return {[from = at::ones({n}, bytes), to = at::empty({n}, bytes)] { to.copy_(from); }};
  });
  return 2 * static_cast<double>(size) / seconds;
}

double Rates::between(bool to_host) const {
  const at::TensorOptions bytes(at::kByte);
  const auto [size, seconds] = sized(kLeastBytes, 4 * most_elements_, [&](std::int64_t n) -> Work {
    const at::Tensor here = at::empty({n}, bytes.pinned_memory(true)), there = at::ones({n}, bytes.device(where_));
    here.zero_();
    return {[=] { to_host ? here.copy_(there) : there.copy_(here); }};
  });
  return static_cast<double>(size) / seconds;
}

double Rates::from_host() const {
  return between(false);
}

double Rates::to_host() const {
  return between(true);
}

double Rates::updates() const {
  return updates_at(where_);
}

double Rates::updates_on_host() const {
  return updates_at(at::kCPU);
}

double Rates::updates_at(c10::Device device) const {
  double bytes = 0;
  const std::int64_t most = most_elements_ / 2;  // a step has eight arrays: parameter, gradients, moments, temporaries
  const auto [size, seconds] = sized(1 << 16, most, [&](std::int64_t n) -> Work {
    const auto alone = std::make_shared<OneParameter>(zero::World(), device, n);
    bytes = alone->update_bytes();
    return {[alone] { alone->step(); }, [alone] { alone->backward(); }};
  });
  static_cast<void>(size);
  return bytes / seconds;
}

Rates::Exchanged Rates::exchanged(std::int64_t parameters) const {
  const auto seconds = [&](OneParameter& training) {
    return seconds_of({[&] {
      training.backward();
      training.step();
    }});
  };
  OneParameter together(world_, where_, parameters), alone(zero::World(), where_, parameters);
  const double of_all = seconds(together), of_one = seconds(alone);
  const zero::Traffic traffic = together.traffic();
  double calls = 0;
  for (const auto& entry : traffic.entries) calls += static_cast<double>(entry.calls);
  constexpr double steps = kRounds + 1;
  return {static_cast<double>(traffic.bytes()) / steps, calls / steps, std::max(of_all - of_one, kLeastPart * of_all)};
}

double Rates::collectives() const {
  if (world_.size() == 1) return 0;
  const Exchanged large = exchanged(std::min(kExchanged, most_elements_ / 4));
  return large.bytes / large.seconds;
}

double Rates::collective_seconds() const {
  if (world_.size() == 1) return 0;
  const Exchanged small = exchanged(1);
  return small.seconds / small.calls;
}

double Rates::matrix_flops(const at::TensorOptions& options) const {
  const auto [width, seconds] = sized(256, widest_, [&](std::int64_t n) {
    return Work{[a = at::ones({n, n}, options), b = at::ones({n, n}, options)] { static_cast<void>(at::mm(a, b)); }};
  });
  const auto n = static_cast<double>(width);
  return 2 * n * n * n / seconds;
}

// Without what computing takes of it, at most half.
double Rates::matrix_bandwidth(const at::TensorOptions& options, double flops) const {
  const auto [rows, seconds] = sized(256, widest_, [&](std::int64_t n) {
    return Work{
        [a = at::ones({n, n}, options), b = at::ones({n, kThin}, options)] { static_cast<void>(at::mm(a, b)); }};
  });
  const auto n = static_cast<double>(rows);
  const double moving = std::max(seconds - 2 * n * n * kThin / flops, seconds / 2);
  return size_of(options) * n * (n + 2 * kThin) / moving;
}

// Half of the scores, since what is masked is not computed.
double Rates::attention_flops(const at::TensorOptions& options) const {
  const auto [tokens, seconds] = sized(128, widest_, [&](std::int64_t n) {
    return Work{[x = at::ones({1, kHeads, n, kHeadSize}, options)] {
      static_cast<void>(at::scaled_dot_product_attention(x, x, x, {}, 0, /*is_causal=*/true));
    }};
  });
  const auto n = static_cast<double>(tokens);
  return 2 * n * n * kHeads * kHeadSize / seconds;
}

double Rates::sweep_bandwidth(const at::TensorOptions& options) const {
  const auto [count, seconds] = sized(1 << 16, most_elements_, [&](std::int64_t n) {
    return Work{[a = at::ones({n}, options), b = at::ones({n}, options), sum = at::empty({n}, options)]() mutable {
      at::add_out(sum, a, b);
    }};
  });
  return 3 * size_of(options) * static_cast<double>(count) / seconds;
}

// Forward and backward.
double Rates::operator_seconds(const at::TensorOptions& options) const {
  const auto [length, seconds] = sized(64, kLongestChain, [&](std::int64_t n) {
    return Work{[begin = at::ones({1}, options).requires_grad_(true), n] {
      const at::AutoGradMode recorded(true);
      at::Tensor end = begin;
      for (std::int64_t i = 0; i < n; ++i) end = end.neg();
      end.backward();
    }};
  });
  return seconds / (2 * static_cast<double>(length));
}

planner::Pace Rates::pace(zero::Precision precision) const {
  const at::NoGradGuard no_grad;
  const at::TensorOptions options = at::TensorOptions(type_of(precision)).device(where_);
  planner::Pace pace;
  pace.matrix_flops = matrix_flops(options);
  pace.matrix_bandwidth = matrix_bandwidth(options, pace.matrix_flops);
  pace.attention_flops = attention_flops(options);
  pace.sweep_bandwidth = sweep_bandwidth(options);
  pace.operator_seconds = operator_seconds(options);
  return pace;
}

}  // namespace cli
