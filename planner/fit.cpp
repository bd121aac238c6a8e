#include "planner/fit.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <tuple>
#include <utility>

#include "planner/quantity.h"

namespace planner {
namespace {

constexpr const char* kActivations = "activations";
constexpr double kThousandth = 1e-3;
constexpr int kMostRanks = 1 << 17;

struct Part {
  std::string name;
  std::int64_t bytes = 0;
  const zero::Row* row = nullptr;  // of states
};

Part largest_part(const Cost& cost) {
  const zero::StateBytes& state = cost.estimate.state;
  const std::array<Part, 5> parts{{{"parameter", state.parameter, &cost.plan[zero::State::parameter]},
                                   {"gradient", state.gradient, &cost.plan[zero::State::gradient]},
                                   {"optimizer", state.optimizer, &cost.plan[zero::State::optimizer]},
                                   {kActivations, cost.activations.bytes},
                                   {"buffers", cost.buffers()}}};
  return *std::ranges::max_element(parts, {}, &Part::bytes);
}

// The first of the presets that shards what this plan does not.
std::string sharding(const std::string& state, const Cost& cost) {
  for (const std::string_view preset : zero::Plan::presets()) {
    const zero::Plan other = zero::Plan::named(preset);
    for (const zero::State each : {zero::State::parameter, zero::State::gradient, zero::State::optimizer}) {
      const bool is_sharded = cost.plan[each].between == zero::Placement::sharded;
      if (name(each) == state && !is_sharded && other[each].between == zero::Placement::sharded)
        return std::string(preset);
    }
  }
  return {};
}

std::string help_of_ranks(int ranks) {
  if (ranks == 0) return "no number of ranks helps: what each of them holds whole is too large";
  return "it fits on " + std::to_string(ranks) + " ranks";
}

}  // namespace

std::vector<std::size_t> ranking(const std::vector<Cost>& costs) {
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i < costs.size(); ++i)
    if (costs[i].fits()) order.push_back(i);
  std::ranges::stable_sort(order, {},
                           [&](std::size_t i) { return std::tuple(rounded(costs[i].seconds, 3), costs[i].peak); });
  return order;
}

std::vector<std::string> reasons(const Request& request, const Cost& cost) {
  if (cost.fits()) return {};
  return reasons(cost, largest_batch(request, cost), least_ranks(request, cost.plan));
}

std::vector<std::string> reasons(const Cost& cost, std::int64_t batch, int ranks) {
  if (cost.fits()) return {};
  const Part part = largest_part(cost);
  const std::string kind = part.row == nullptr ? "" : " state";
  std::vector<std::string> result{"it needs " + in_units(cost.excess) + " more: " + in_units(cost.peak) +
                                  " at its peak (" + cost.moment + ")"};
  const char* const how_much = 2 * part.bytes > cost.peak ? "most of it, " : "the largest part of it, ";
  result.push_back(how_much + in_units(part.bytes) + ", is " + part.name + kind);
  const std::string other = sharding(part.name, cost);
  if (!other.empty()) result.push_back(other + " shards it");
  if (batch > 0) result.push_back("it fits with a batch of " + std::to_string(batch));
  if (batch == 0 && part.name == kActivations) result.emplace_back("shorter sequences make them fewer");
  result.push_back(help_of_ranks(ranks));
  return result;
}

std::int64_t largest(std::int64_t limit, const std::function<std::int64_t(std::int64_t)>& bytes, std::int64_t start,
                     double precision) {
  constexpr std::int64_t kMost = std::int64_t{1} << 52;
  std::int64_t fitting = 0, failing = std::max<std::int64_t>(start, 1);
  while (failing < kMost && bytes(failing) <= limit) fitting = std::exchange(failing, 2 * failing);
  for (std::int64_t half = failing / 2; fitting == 0 && half > 0; half /= 2)
    (bytes(half) <= limit ? fitting : failing) = half;
  const auto close = [&] { return std::max<std::int64_t>(1, std::llround(precision * static_cast<double>(fitting))); };
  while (fitting > 0 && failing - fitting > close()) {
    const std::int64_t middle = std::midpoint(fitting, failing);
    (bytes(middle) <= limit ? fitting : failing) = middle;
  }
  return fitting;
}

std::int64_t largest_batch(const Request& request, const Cost& cost) {
  const auto bytes = [&](std::int64_t batch) {
    return peak_of(cost.estimate, activations({request.shape.config, batch, request.seq, cost.plan.precision()})).bytes;
  };
  return largest(*request.device_memory, bytes, request.batch, 0);
}

std::int64_t largest_parameters(const Request& request, const zero::Plan& plan) {
  Request other = request;
  const auto bytes = [&](std::int64_t parameters) {
    other.shape = shape_of(parameters);
    return price(other, plan).peak;
  };
  const double part = static_cast<double>(*request.device_memory) / static_cast<double>(price(request, plan).peak);
  const double guess = part * static_cast<double>(request.shape.parameters);
  return largest(*request.device_memory, bytes, std::llround(guess), kThousandth);
}

int least_ranks(const Request& request, const zero::Plan& plan) {
  const bool several = request.hosts > 1;
  const int host = several ? request.ranks / request.hosts : 1;
  Request other = request;
  const auto fits = [&](int count) {
    other.ranks = count * host;
    other.hosts = several ? count : 1;
    return price(other, plan).fits();
  };
  // Padding may let the largest number of ranks need a little more than fewer do.
  const int most = std::max(kMostRanks / host, 1), given = several ? request.hosts : request.ranks;
  int high = 1;
  if (!fits(most) && !fits(given)) return 0;
  while (!fits(high)) {
    if (high >= most) return given * host;
    high = high < given && 2 * high > given ? given : std::min(2 * high, most);
  }
  int low = high / 2;
  while (high - low > 1) {
    const int middle = std::midpoint(low, high);
    (fits(middle) ? high : low) = middle;
  }
  return high * host;
}

}  // namespace planner
