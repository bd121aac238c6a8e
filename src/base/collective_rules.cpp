#include "base/collective_rules.h"

#include <array>

#include "base/sum_tree.h"

namespace zero {
namespace {

Take all_of_each(int, int peer, int) {
  return {0, peer};
}
Take own_slice_of_each(int rank, int peer, int) {
  return {rank, peer};
}
Take all_of_root(int, int peer, int root) {
  return peer == root ? Take{0, 0} : Take{};
}

// In the order of Collective.
constexpr std::array<CollectiveRule, kCollectives> kRules{{
    {.name = "all_gather", .in = Cut::whole, .out = Cut::slices, .take = all_of_each},
    {.name = "reduce_scatter", .in = Cut::slices, .out = Cut::whole, .sums = true},
    {.name = "all_reduce", .in = Cut::whole, .out = Cut::whole, .sums = true},
    {.name = "all_to_all", .in = Cut::slices, .out = Cut::slices, .take = own_slice_of_each},
    {.name = "broadcast", .in = Cut::whole, .out = Cut::whole, .rooted = true, .take = all_of_root},
    {.name = "barrier", .in = Cut::whole, .out = Cut::whole},
}};

}  // namespace

const CollectiveRule& rule_of(Collective collective) {
  return kRules.at(static_cast<std::size_t>(collective));
}

std::string_view name(Collective collective) {
  return rule_of(collective).name;
}

int slices_of_input(const CollectiveCall& call, int size) {
  const CollectiveRule& rule = rule_of(call.collective);
  if (rule.in == Cut::whole) return 1;
  return rule.sums ? size * GroupSum(call.leaves, size).most() : size;
}

}  // namespace zero
