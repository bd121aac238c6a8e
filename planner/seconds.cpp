#include "planner/seconds.h"

#include <algorithm>
#include <array>
#include <utility>

#include "planner/theory.h"

namespace planner {
namespace {

constexpr std::array kKinds{&Labour::matrix_flops, &Labour::matrix_bytes, &Labour::attention_flops,
                            &Labour::sweep_bytes, &Labour::operators};
using ByKind = std::array<double, kKinds.size()>;

class Counter final : public StepListener {
 public:
  explicit Counter(zero::Precision precision) : precision_(precision) {}

  void product(std::int64_t m, std::int64_t n, std::int64_t k) override { labour_.add_product(precision_, m, n, k); }
  void attention(double flops, bool) override { labour_.add_attention(flops); }
  void sweep(std::int64_t, std::int64_t bytes) override { labour_.add_sweep(bytes); }
  // Exact, since these are sums of integers.
  void repeat(std::int64_t times, const std::function<void()>& once) override {
    if (times == 0) return;
    const Labour before = labour_;
    once();
    const auto more = static_cast<double>(times - 1);
    for (double Labour::*const kind : kKinds) labour_.*kind += more * (labour_.*kind - before.*kind);
  }
  const Labour& labour() const { return labour_; }

 private:
  zero::Precision precision_;
  Labour labour_;
};

ByKind terms_of(const Labour& labour) {
  ByKind terms;
  for (std::size_t i = 0; i < kKinds.size(); ++i) terms[i] = labour.*kKinds[i];
  return terms;
}

double per_second(double rate) {
  return rate > 0 ? 1 / rate : 0;
}

ByKind costs_of(const Pace& pace) {
  return {per_second(pace.matrix_flops), per_second(pace.matrix_bandwidth), per_second(pace.attention_flops),
          per_second(pace.sweep_bandwidth), pace.operator_seconds};
}

// From the host's memory over its link to the device and from disks through their store, both at once.
double moving(const zero::TierTraffic& moved, std::int64_t zero::TierTraffic::Entry::*way, double disk, double link) {
  return std::max(static_cast<double>(moved.on(zero::Tier::disk).*way) * per_second(disk),
                  static_cast<double>(moved.on(zero::Tier::host).*way) * per_second(link));
}

double reading(const zero::TierTraffic& moved, const Profile& profile) {
  return moving(moved, &zero::TierTraffic::Entry::read, profile.disk_read_bandwidth, profile.host_link_bandwidth);
}

double writing(const zero::TierTraffic& moved, const Profile& profile) {
  return moving(moved, &zero::TierTraffic::Entry::written, profile.disk_write_bandwidth, profile.host_link_bandwidth);
}

// Where what computes an update has its memory: the host, but for one that takes all from the device.
zero::Tier updated_by(const zero::Plan& plan) {
  const auto elsewhere = [&](zero::State state) { return plan[state].tier != zero::Tier::device; };
  const bool any =
      std::ranges::any_of(std::array{zero::State::parameter, zero::State::gradient, zero::State::optimizer}, elsewhere);
  return any ? zero::Tier::host : zero::Tier::device;
}

// A rate that no run shows to cost anything is infinite; this is as good.
double rate_of(double cost) {
  constexpr double no_cost = 1e-18;
  return 1 / std::max(cost, no_cost);
}

}  // namespace

void Labour::add_product(zero::Precision precision, std::int64_t m, std::int64_t n, std::int64_t k) {
  const double size = precision == zero::Precision::fp32 ? 4 : 2;  // bytes of an element
  matrix_flops += 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
  matrix_bytes += size * static_cast<double>(m * n + n * k + m * k);
  ++operators;
}

void Labour::add_attention(double flops) {
  attention_flops += flops;
  ++operators;
}

void Labour::add_sweep(std::int64_t bytes) {
  sweep_bytes += static_cast<double>(bytes);
  ++operators;
}

Labour labour_of(const MicroBatch& work) {
  Counter counter(work.precision);
  walk(work, counter);
  return counter.labour();
}

double Labour::seconds(const Pace& pace) const {
  const ByKind terms = terms_of(*this), costs = costs_of(pace);
  double sum = 0;
  for (std::size_t i = 0; i < kKinds.size(); ++i) sum += terms[i] * costs[i];
  return sum;
}

// What is read where it lies costs nothing.
double collective_seconds(const zero::Estimate& estimate, const Profile& profile) {
  const zero::Traffic& wire = estimate.wire;
  double calls = 0, across = 0;
  for (const zero::Traffic::Entry& entry : wire.entries) {
    calls += static_cast<double>(entry.calls);
    across += static_cast<double>(entry.calls_across);
  }
  const double more = std::max(0.0, profile.network_seconds - profile.collective_seconds);
  return calls * profile.collective_seconds + across * more +
         static_cast<double>(wire.within_host() - wire.in_place()) * per_second(profile.within_host()) +
         static_cast<double>(wire.across_hosts()) * per_second(profile.network_bandwidth);
}

double tensor_seconds(const TensorWire& wire, const Profile& profile) {
  return wire.calls * profile.collective_seconds + static_cast<double>(wire.bytes) * per_second(profile.within_host());
}

double computing_seconds(const MicroBatch& work, const zero::Plan& plan, const Pace& pace, const zero::MeshShape& mesh,
                         double again) {
  const int unreduced = reduces_each(plan.on(mesh)) ? 0 : plan.accumulate() - 1;
  return (plan.accumulate() - pace.waiting * unreduced) * labour_of(work).seconds(pace) + plan.accumulate() * again;
}

TierSeconds tier_seconds(const zero::Plan& plan, const zero::Estimate& estimate, const Profile& profile,
                         const zero::MeshShape& mesh) {
  const zero::TierMoves& moved = estimate.moved;
  TierSeconds seconds{.beside = reading(moved.use, profile), .alone = reading(moved.vote, profile)};
  (reduces_each(plan.on(mesh)) ? seconds.beside : seconds.alone) +=
      reading(moved.backward, profile) + writing(moved.backward, profile);
  seconds.reading = reading(moved.update, profile);
  seconds.writing = writing(moved.update, profile);
  const auto below = static_cast<double>(estimate.update_traffic - estimate.update_staying) *
                     per_second(profile.update_bandwidth_of(updated_by(plan)));
  const bool by_device = profile.device_memory > 0 && plan[zero::State::parameter].tier == zero::Tier::device;
  const auto staying = static_cast<double>(estimate.update_staying) *
                       per_second(profile.update_bandwidth_of(by_device ? zero::Tier::device : updated_by(plan)));
  seconds.updating = by_device ? std::max(below, staying) : below + staying;
  return seconds;
}

std::vector<std::string> missing_for_tiers(const zero::Plan& plan, const Profile& profile) {
  std::vector<std::string> keys;
  const auto need = [&](const char* key, double value) {
    if (value == 0 && std::ranges::find(keys, key) == keys.end()) keys.emplace_back(key);
  };
  for (const zero::State state : {zero::State::parameter, zero::State::gradient, zero::State::optimizer}) {
    const zero::Tier tier = plan[state].tier;
    if (tier == zero::Tier::device) continue;
    if (tier == zero::Tier::disk) need("disk_read_bandwidth", profile.disk_read_bandwidth);
    if (tier == zero::Tier::disk) need("disk_write_bandwidth", profile.disk_write_bandwidth);
    if (profile.device_memory > 0) need("host_link_bandwidth", profile.host_link_bandwidth);
    if (profile.device_memory > 0) need("host_bandwidth", profile.host_bandwidth);
  }
  return keys;
}

double step_seconds(const MicroBatch& work, const zero::Plan& plan, const zero::Estimate& estimate,
                    const Profile& profile, const zero::MeshShape& mesh, double again) {
  const double computing = computing_seconds(work, plan, profile.pace(work.precision), mesh, again);
  const TierSeconds tiers = tier_seconds(plan, estimate, profile, mesh);
  const double collectives = collective_seconds(estimate, profile);
  const double update = plan.delays_update() ? std::max(0.0, tiers.update() - computing) : tiers.update();
  return computing + tiers.alone + update + std::max(0.0, collectives - profile.overlap * computing) +
         std::max(0.0, tiers.beside - computing);
}

double model_flops(const models::LlamaConfig& config, std::int64_t parameters, std::int64_t seq) {
  const auto psi = static_cast<double>(parameters);
  const auto queries = static_cast<double>(config.num_attention_heads * config.head_size());
  return 6 * psi + 12 * static_cast<double>(config.num_hidden_layers) * queries * static_cast<double>(seq);
}

Speed speed_of(const MicroBatch& work, const zero::Plan& plan, std::int64_t parameters, double seconds,
               const Profile& profile, int ranks) {
  const double tokens = static_cast<double>(work.batch * work.seq) * plan.accumulate();
  const double peak = profile.pace(work.precision).peak_flops;
  const double flops = tokens * model_flops(work.config, parameters, work.seq);
  return {.tokens_per_second = ranks * tokens / seconds,
          .utilization = peak > 0 ? std::optional(flops / (seconds * peak)) : std::nullopt};
}

// Coordinate by coordinate, each time the best value that is not negative; the squares are convex, so that it settles.
Pace fitted(const std::vector<Measured>& runs) {
  constexpr int rounds = 20000;
  ByKind costs{};
  for (int round = 0; round < rounds; ++round)
    for (std::size_t i = 0; i < kKinds.size(); ++i) {
      double along = 0, square = 0;
      for (const Measured& run : runs) {
        const ByKind terms = terms_of(run.labour);
        double rest = 1;
        for (std::size_t j = 0; j < kKinds.size(); ++j)
          if (j != i) rest -= terms[j] * costs[j] / run.seconds;
        along += rest * terms[i] / run.seconds;
        square += terms[i] * terms[i] / (run.seconds * run.seconds);
      }
      if (square > 0) costs[i] = std::max(0.0, along / square);
    }
  return {.matrix_flops = rate_of(costs[0]),
          .matrix_bandwidth = rate_of(costs[1]),
          .attention_flops = rate_of(costs[2]),
          .sweep_bandwidth = rate_of(costs[3]),
          .operator_seconds = costs[4]};
}

double waiting_of(double accumulated, double once, int accumulate) {
  if (!(once > 0)) return 0;
  const double spared = 1 - accumulated / (accumulate * once);
  return std::clamp(spared * accumulate / (accumulate - 1), 0.0, 1.0);
}

}  // namespace planner
