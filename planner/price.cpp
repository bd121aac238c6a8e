#include "planner/price.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "partition/moments.h"
#include "partition/slices.h"
#include "planner/seconds.h"
#include "zero/error.h"

namespace planner {
namespace {

using zero::Placement;
using zero::State;

void check(const Request& request) {
  if (request.ranks < 1 || request.hosts < 1 || request.ranks % request.hosts != 0)
    throw zero::ConfigError(
        std::to_string(request.ranks) + " ranks do not divide among " + std::to_string(request.hosts) + " hosts",
        "give as many ranks to each host");
  const std::int64_t positions = request.shape.config.max_position_embeddings;
  if (request.seq > positions)
    throw zero::ConfigError("a sequence of " + std::to_string(request.seq) + " tokens exceeds the model's " +
                                std::to_string(positions) + " positions",
                            "shorten the sequence or raise max_position_embeddings");
}

// Bytes that the ranks together hold for each element behind a parameter that belongs to none.
class Padding {
 public:
  Padding(const zero::Plan& plan, const Arrangement& arrangement)
      : plan_(plan), rules_(arrangement.rules), ranks_(arrangement.layout.ranks()) {
    for (const zero::UnitLayout& unit : arrangement.layout.units()) add(unit);
  }
  std::int64_t of_a_rank() const { return bytes_ / ranks_; }

 private:
  void add(const zero::UnitLayout& unit) {
    const std::vector<zero::Slot>& slots = unit.slots();
    for (std::size_t i = 0; i < slots.size(); ++i) {
      const std::int64_t next = i + 1 < slots.size() ? slots[i + 1].begin : unit.length();
      bytes_ += (next - slots[i].end()) * of_an_element(unit, slots[i]);
    }
  }

  std::int64_t of_an_element(const zero::UnitLayout& unit, const zero::Slot& slot) const {
    const zero::Optimizer& optimizer = rules_[static_cast<std::size_t>(slot.index)].optimizer;
    const std::int64_t parameter = size_of(unit.dtype());
    const std::int64_t gradient = size_of(plan_.gradient_dtype(unit.dtype())) * accumulation_levels(plan_);
    const std::int64_t state =
        plan_.remainder_bytes(unit.dtype()) + moments(optimizer) * size_of(zero::moment_dtype(optimizer, unit.dtype()));
    return copies(plan_[State::parameter].placement) * parameter + copies(plan_[State::gradient].between) * gradient +
           copies(plan_[State::optimizer].placement) * state;
  }

  std::int64_t copies(Placement placement) const { return placement == Placement::sharded ? 1 : ranks_; }

  const zero::Plan& plan_;
  const std::vector<zero::ParameterRule>& rules_;
  int ranks_;
  std::int64_t bytes_ = 0;
};

// Beside the state and the flat gradient, which a rank holds all the time: gathered parameters and activations come and
// go in micro-batches, what whole tensors need in the update, when these are gone.
void find_peak(Cost& cost) {
  const std::int64_t always = cost.estimate.state.total() + cost.estimate.reduction;
  const std::int64_t computing = cost.estimate.gathered + cost.activations.bytes;
  cost.peak = always + std::max(computing, cost.estimate.update);
  cost.moment = computing >= cost.estimate.update ? cost.activations.moment : "the update";
}

// A sum over the ranks of a host is as wide as the gradient that it becomes.
double growth_of_sums(const zero::Plan& plan) {
  const zero::Dtype stored = plan.compute_dtype();
  const auto sent = static_cast<double>(size_of(plan.reduction_dtype(stored)));
  return std::max(sent, static_cast<double>(size_of(plan.gradient_dtype(stored)))) / sent;
}

Cost price(const Request& request, const zero::Plan& plan, const Activations& kept) {
  const Arrangement arrangement(request.shape, plan, request.optimizer, request.ranks);
  Cost cost{.plan = plan,
            .estimate = zero::estimate(plan, arrangement.layout, arrangement.rules, arrangement.trace, request.memory),
            .activations = kept};
  cost.padding = Padding(plan.on(request.ranks), arrangement).of_a_rank();
  find_peak(cost);
  const WireSplit split = wire_split(cost.estimate.wire, plan.on(request.ranks), request.ranks, request.hosts);
  cost.wire_inside = split.inside;
  cost.wire_across = split.across;
  cost.seconds = step_seconds({request.shape.config, request.batch, request.seq}, plan, cost.estimate, request.profile,
                              request.ranks, request.hosts);
  if (request.device_memory) cost.excess = cost.peak - *request.device_memory;
  return cost;
}

}  // namespace

Arrangement::Arrangement(const Shape& shape, const zero::Plan& plan, const zero::Optimizer& optimizer, int ranks)
    : layout({}, 1), rules(parameter_rules(optimizer, {}, shape.infos)) {
  layout = zero::Layout(specs(shape, plan), ranks, slices_of(plan, rules));
  trace = order_of_use(shape.config, layout);
}

zero::Estimate estimate(const Shape& shape, const zero::Plan& plan, const zero::Optimizer& optimizer, int ranks,
                        zero::Memory memory) {
  const Arrangement arrangement(shape, plan, optimizer, ranks);
  return zero::estimate(plan, arrangement.layout, arrangement.rules, arrangement.trace, memory);
}

Cost price(const Request& request, const zero::Plan& plan) {
  check(request);
  return price(request, plan, activations(request.shape.config, request.batch, request.seq, plan.precision()));
}

std::vector<Cost> price(const Request& request) {
  std::vector<Cost> costs;
  for (const zero::Plan& plan : request.plans) costs.push_back(price(request, plan));
  return costs;
}

WireSplit wire_split(const zero::Traffic& wire, const zero::Plan& plan, int ranks, int hosts) {
  if (hosts == 1) return {wire.bytes(), 0};
  if (hosts == ranks) return {0, wire.bytes()};
  const int host = ranks / hosts;
  const double peers = ranks - 1, others = hosts - 1, here = host - 1;
  const auto gathered = static_cast<double>(wire[zero::Collective::all_gather].bytes);
  const auto reduced = static_cast<double>(wire[zero::Collective::reduce_scatter].bytes);
  const bool summed_inside = std::has_single_bit(static_cast<unsigned>(host));
  const double sums = summed_inside ? others * growth_of_sums(plan) : peers - here;
  const double inside = (peers - others) * gathered + (summed_inside ? peers - others : here) * reduced;
  return {std::llround(inside / peers), std::llround((others * gathered + sums * reduced) / peers)};
}

}  // namespace planner
