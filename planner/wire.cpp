#include "planner/wire.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace planner {
namespace {

// A sum over the ranks of a host is as wide as the gradient that it becomes.
double growth_of_sums(const zero::Plan& plan) {
  const zero::Dtype stored = plan.compute_dtype();
  const auto sent = static_cast<double>(size_of(plan.reduction_dtype(stored)));
  return std::max(sent, static_cast<double>(size_of(plan.gradient_dtype(stored)))) / sent;
}

}  // namespace

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
  const double across = others * gathered + sums * reduced;
  const std::int64_t within = std::llround(inside / peers);
  return {within, std::llround((inside + across) / peers) - within};
}

}  // namespace planner
