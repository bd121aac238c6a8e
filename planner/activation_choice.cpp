#include "planner/activation_choice.h"

#include <algorithm>
#include <array>
#include <utility>

#include "planner/fit.h"

namespace planner {
namespace {

constexpr std::array kShares{.75, .5, .25};
// What the engine finds may be that much above what is foreseen to be the least.
constexpr double kAboveLeast = 1.02;

bool fits_within(const Request& request, const zero::Plan& plan, const zero::ActivationBudget& budget) {
  return price_bytes(request, plan.activation_budget(budget)).fits();
}

// Whatever budget is given, so much is there.
bool fits_with_none(const Request& request, const zero::Plan& plan) {
  return fits_within(request, plan, {.bytes = 1});
}

std::optional<Cost> within_a_budget(const Request& request, const zero::Plan& plan) {
  if (!fits_with_none(request, plan)) return {};
  const MicroBatch work = micro_batch(request, plan);
  if (!foresees_budget(work)) return {};
  const Pace pace = pace_for(request.profile, work.precision);
  const auto met = [&](const zero::ActivationBudget& budget) {
    MicroBatch within = work;
    within.budget = budget;
    return recomputation(within, pace).has_value();
  };
  const auto largest =
      std::ranges::find_if(kShares, [&](double share) { return fits_within(request, plan, {.share = share}); });
  if (largest != kShares.end() && met({.share = *largest}))
    return price(request, plan.activation_budget({.share = *largest}));
  const auto least = static_cast<double>(least_activation_budget(work, pace));
  const zero::ActivationBudget budget{.bytes = static_cast<std::int64_t>(kAboveLeast * least)};
  if (!fits_within(request, plan, budget) || !met(budget)) return {};
  return price(request, plan.activation_budget(budget));
}

std::optional<Cost> in_micro_batches(const Request& request, const zero::Plan& plan, const Split& split) {
  Request other = request;
  other.batch = split.batch;
  return price(other, plan.accumulate(split.accumulate));
}

// Of one sequence each, or as few as a step of so many micro-batches may have.
std::optional<Cost> smallest_within_a_budget(const Request& request, const zero::Plan& plan) {
  const std::int64_t sequences = request.batch * plan.accumulate();
  if (sequences > most_micro_batches(request.shape)) return {};
  Request other = request;
  other.batch = 1;
  return within_a_budget(other, plan.accumulate(static_cast<int>(sequences)));
}

bool faster(const Cost& one, const Cost& other) {
  return one.priced() && other.priced() && one.seconds < other.seconds;
}

}  // namespace

std::optional<Cost> with_less_activations(const Request& request, const zero::Plan& plan) {
  if (plan.activation_budget()) return {};
  const std::optional<Split> split = split_of(request, plan);
  const std::optional<Cost> whole = split ? in_micro_batches(request, plan, *split) : std::nullopt;
  const std::optional<Cost> within = within_a_budget(request, plan);
  if (whole && within) return faster(*within, *whole) ? within : whole;
  if (whole || within) return whole ? whole : within;
  return smallest_within_a_budget(request, plan);
}

void choose_activations(const Request& request, std::vector<Cost>& costs) {
  if (!request.chooses_activations || std::ranges::any_of(costs, &Cost::fits)) return;
  for (Cost& cost : costs)
    if (std::optional<Cost> other = with_less_activations(request, cost.plan)) {
      if (other->priced()) other->dearer = other->seconds - cost.seconds;
      cost = *std::move(other);
    }
}

}  // namespace planner
