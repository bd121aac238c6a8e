#include "planner/fit.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <tuple>
#include <utility>

#include "planner/quantity.h"
#include "planner/theory.h"

namespace planner {
namespace {

constexpr double kThousandth = 1e-3;
constexpr int kMostRanks = 1 << 17;

struct Part {
  std::string name;
  std::int64_t bytes = 0;
  const zero::Row* row = nullptr;  // of states
};

Part largest_part(const Cost& cost) {
  std::vector<Part> parts;
  for (const zero::State state : {zero::State::parameter, zero::State::gradient, zero::State::optimizer})
    parts.push_back({std::string(name(state)), cost.estimate.held[owner_of(state)].bytes, &cost.plan[state]});
  parts.push_back({"activations", cost.activations.bytes});
  parts.push_back({"buffers", cost.estimate.buffers()});
  return *std::ranges::max_element(parts, {}, &Part::bytes);
}

// The first of the presets that shards what this plan does not.
std::string sharding(const std::string& state, const Cost& cost) {
  for (const std::string_view preset : zero::Plan::stages()) {
    const zero::Plan other = zero::Plan::named(preset);
    for (const zero::State each : {zero::State::parameter, zero::State::gradient, zero::State::optimizer}) {
      const auto shards = [each](const zero::Plan& plan) { return divided_among(plan, each, 2) == 2; };
      if (name(each) == state && !shards(cost.plan) && shards(other)) return std::string(preset);
    }
  }
  return {};
}

// What changes activations only.
void add_help_of_batches(const Request& request, const Cost& cost, const Reach& reach,
                         std::vector<std::string>& sentences) {
  if (reach.split)
    sentences.push_back("it fits with --batch " + std::to_string(reach.split->batch) + " --accumulate " +
                        std::to_string(reach.split->accumulate) + ": as many tokens a step");
  if (reach.largest_batch > 0)
    sentences.push_back("it fits with a --batch of up to " + std::to_string(reach.largest_batch));
  if (reach.longest_seq > 0) sentences.push_back("it fits with a --seq of up to " + std::to_string(reach.longest_seq));
  if (reach.longest_seq == 0 && reach.largest_batch == 0 && reach.longest_seq_alone > 0)
    sentences.push_back("it fits with --batch 1 and a --seq of up to " + std::to_string(reach.longest_seq_alone));
  const std::int64_t without = peak_of(cost.estimate, {}).bytes;
  if (without > *request.device_memory)
    sentences.push_back("no batch and no sequence is small enough: without activations it is " + in_units(without));
}

// Of micro-batches of another size under the plan. So many bytes would be too few for larger ones: a budget is of them
// the share that it is of the request's.
std::int64_t bytes_with(const Request& request, const Cost& cost, std::int64_t batch, std::int64_t seq) {
  MicroBatch work{
      .config = request.shape.config, .batch = request.batch, .seq = request.seq, .precision = cost.plan.precision()};
  if (zero::ActivationBudget budget = cost.plan.activation_budget()) {
    if (budget.share == 0)
      budget = {.share = static_cast<double>(budget.bytes) / static_cast<double>(activations(work).bytes)};
    work.budget = {.share = std::min(budget.share, 1.0)};
  }
  work.batch = batch;
  work.seq = seq;
  return peak_of(cost.estimate, activations(work)).bytes;
}

void add_help_of_memory(const Request& request, const Cost& cost, const Reach& reach,
                        std::vector<std::string>& sentences) {
  sentences.push_back("it needs " + in_units(cost.excess) + " more: " + in_units(cost.peak) + " at its peak (" +
                      cost.moment + ")");
  const Part part = largest_part(cost);
  const std::string kind = part.row == nullptr ? "" : " state";
  const char* const how_much = 2 * part.bytes > cost.peak ? "most of it, " : "the largest part of it, ";
  sentences.push_back(how_much + in_units(part.bytes) + ", is " + part.name + kind);
  const std::string other = sharding(part.name, cost);
  if (!other.empty()) sentences.push_back(other + " shards it");
  add_help_of_batches(request, cost, reach, sentences);
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
  std::ranges::stable_sort(order, {}, [&](std::size_t i) {
    const bool known = costs[i].priced();
    return std::tuple(costs[i].rounds, !known, known ? rounded(costs[i].seconds, 3) : 0, costs[i].peak);
  });
  return order;
}

Reach reach_of(const Request& request, const Cost& cost) {
  Reach reach{.largest_parameters = largest_parameters(request, cost.plan),
              .largest_batch = largest_batch(request, cost),
              .longest_seq = longest_seq(request, cost, request.batch),
              .longest_seq_alone = longest_seq(request, cost, 1),
              .split = cost.fits() ? std::nullopt : split_of(request, cost.plan),
              .least_ranks = least_ranks(request, cost.plan)};
  reach.reasons = reasons(request, cost, reach);
  return reach;
}

// All are tried, since sums of gradients that are added up reproducibly grow with their number.
std::optional<Split> split_of(const Request& request, const zero::Plan& plan) {
  const std::int64_t sequences = request.batch * plan.accumulate();
  const std::int64_t most = std::min<std::int64_t>(sequences, most_micro_batches(request.shape));
  Request other = request;
  for (int accumulate = plan.accumulate() + 1; accumulate <= most; ++accumulate) {
    if (sequences % accumulate != 0) continue;
    other.batch = sequences / accumulate;
    if (price_bytes(other, plan.accumulate(accumulate)).fits()) return Split{other.batch, accumulate};
  }
  return {};
}

std::vector<std::string> reasons(const Request& request, const Cost& cost, const Reach& reach) {
  if (cost.fits()) return {};
  std::vector<std::string> result;
  if (cost.host_excess > 0) result.push_back("it needs " + in_units(cost.host_excess) + " more memory of each host");
  if (cost.disk_excess > 0)
    result.push_back("it needs " + in_units(cost.disk_excess) + " more disk space of each host");
  if (cost.excess > 0) add_help_of_memory(request, cost, reach, result);
  result.push_back(help_of_ranks(reach.least_ranks));
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
  const auto bytes = [&](std::int64_t batch) { return bytes_with(request, cost, batch, request.seq); };
  return largest(*request.device_memory, bytes, request.batch, 0);
}

std::int64_t longest_seq(const Request& request, const Cost& cost, std::int64_t batch) {
  const std::int64_t positions = request.shape.config.max_position_embeddings;
  const auto bytes = [&](std::int64_t seq) {
    return seq > positions ? std::numeric_limits<std::int64_t>::max() : bytes_with(request, cost, batch, seq);
  };
  return largest(*request.device_memory, bytes, request.seq, 0);
}

std::int64_t largest_parameters(const Request& request, const zero::Plan& plan) {
  Request other = request;
  const auto bytes = [&](std::int64_t parameters) {
    other.shape = shape_of(parameters, request.shape.tensor);
    return price_bytes(other, plan).peak;
  };
  const double part =
      static_cast<double>(*request.device_memory) / static_cast<double>(price_bytes(request, plan).peak);
  const double guess = part * static_cast<double>(request.shape.parameters) * request.shape.tensor;
  return largest(*request.device_memory, bytes, std::llround(guess), kThousandth);
}

int least_ranks(const Request& request, const zero::Plan& plan) {
  const bool several = request.hosts > 1;
  const int host = several ? request.ranks / request.hosts : 1;
  const int step =
      std::lcm(host, std::max(request.shard, 1) * request.shape.tensor);  // whole hosts, and whole shard groups
  Request other = request;
  const auto fits = [&](int count) {
    other.ranks = count * step;
    other.hosts = several ? other.ranks / host : 1;
    return price_bytes(other, plan).fits();
  };
  // Padding may let the largest number of ranks need a little more than fewer do.
  const int most = std::max(kMostRanks / step, 1), given = request.ranks / step;
  int high = 1;
  if (!fits(most) && !fits(given)) return 0;
  while (!fits(high)) {
    if (high >= most) return given * step;
    high = high < given && 2 * high > given ? given : std::min(2 * high, most);
  }
  int low = high / 2;
  while (high - low > 1) {
    const int middle = std::midpoint(low, high);
    (fits(middle) ? high : low) = middle;
  }
  return high * step;
}

}  // namespace planner
