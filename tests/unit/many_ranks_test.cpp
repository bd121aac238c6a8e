// What is computed without looking at every rank agrees with looking at every rank.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <tuple>

#include "partition/full_tensor_owners.h"
#include "partition/moments.h"
#include "partition/packed_ranges.h"
#include "partition/routes.h"
#include "partition/slices.h"
#include "zero/estimate.h"

namespace zero::many_ranks_test {

struct Case {
  std::vector<ParameterSpec> specs;
  std::vector<ParameterRule> rules;
};

Case random_case(std::mt19937_64& random) {
  const auto below = [&](int n) { return static_cast<std::int64_t>(random() % static_cast<unsigned>(n)); };
  const std::vector<Optimizer> optimizers{AdamW{}, Sgd{}, AdamW{.format = MomentFormat::block8}, Muon{}, Adafactor{}};
  Case result;
  const std::int64_t units = 1 + below(4);
  for (int i = 0; i < units * 3; ++i) {
    const std::vector<std::int64_t> shape{1 + below(90), 1 + below(90)};
    result.specs.push_back({.name = std::to_string(i),
                            .numel = shape[0] * shape[1],
                            .dtype = Dtype::bf16,
                            .unit = std::to_string(below(static_cast<int>(units)))});
    result.rules.push_back({.optimizer = optimizers[static_cast<std::size_t>(below(5))], .shape = shape});
  }
  return result;
}

const ParameterRule& rule_of(const Case& each, const Slot& slot) {
  return each.rules[static_cast<std::size_t>(slot.index)];
}

std::int64_t moments_of_rank(const Plan& plan, const Layout& layout, const Case& each, const std::vector<int>& owners,
                             int rank) {
  std::int64_t bytes = 0;
  for (const UnitLayout& unit : layout.units()) {
    const Shard held = Routes(plan, rank).rest(State::optimizer, unit);
    const std::int64_t begin = held.begin, end = held.end();
    for (const MomentArray& array : moment_arrays())
      bytes += size_of(array.dtype(unit.dtype())) * PackedRanges(unit, begin, end, [&](const Slot& slot) {
                                                      return array.holds(rule_of(each, slot).optimizer);
                                                    }).length();
    for (const Piece& piece : unit.pieces_between(begin, end))
      bytes += scale_bytes(piece, rule_of(each, unit.slot(piece.slot)).optimizer, unit.dtype());
    for (const Slot& slot : unit.slots())
      if (owners[static_cast<std::size_t>(slot.index)] == rank) bytes += 4 * owned_values(rule_of(each, slot));
  }
  return bytes;
}

TEST(ManyRanks, TheLargestOptimizerStateIsThatOfSomeRank) {
  std::mt19937_64 random(7);
  const std::vector<MeshShape> meshes{
      2, 3, 4, 7, 64, 100, 1000, {64, {.shard = 8}}, {21, {.shard = 3}}, {100, {.shard = 1}}};
  for (const MeshShape& mesh : meshes) {
    for (int round = 0; round < 20; ++round) {
      const Case each = random_case(random);
      const Plan plan = (round % 2 ? Plan::hybrid() : Plan::hybrid_zero2()).bf16().on(mesh);
      const int ranks = mesh.size();
      const Layout layout(each.specs, mesh, slices_of(plan, each.rules));
      const std::vector<int> owner = owners(layout, each.rules);
      std::int64_t most = 0;
      for (int rank = 0; rank < ranks; ++rank) most = std::max(most, moments_of_rank(plan, layout, each, owner, rank));
      std::int64_t main_weights = 0;
      for (const UnitLayout& unit : layout.units()) main_weights += 4 * Routes(plan).rest(State::optimizer, unit).count;
      const Estimate estimated = estimate(plan, layout, each.rules, Trace::sequential(layout));
      ASSERT_EQ(estimated.state.optimizer, most + main_weights) << mesh.text() << ", round " << round;
    }
  }
}

double cost(const ParameterRule& rule, std::int64_t numel) {
  if (!std::holds_alternative<Muon>(rule.optimizer)) return static_cast<double>(numel);
  return static_cast<double>(numel * std::min(rule.shape[0], rule.shape[1]));
}

bool owned(const ParameterRule& rule) {
  const auto work = full_tensor_work(rule.optimizer);
  return work && work->owner;
}

std::vector<int> plain_owners(const Layout& layout, const Case& each) {
  std::vector<int> result(each.specs.size(), -1);
  std::vector<double> total(static_cast<std::size_t>(layout.ranks()));
  for (const UnitLayout& unit : layout.units()) {
    std::vector<const Slot*> slots;
    for (const Slot& slot : unit.slots())
      if (owned(rule_of(each, slot))) slots.push_back(&slot);
    const auto costs = [&](const Slot* slot) { return cost(rule_of(each, *slot), slot->numel); };
    std::ranges::stable_sort(slots, std::greater(), costs);
    std::vector<double> here(total.size());
    for (const Slot* slot : slots) {
      std::size_t least = 0;
      for (std::size_t rank = 1; rank < total.size(); ++rank)
        if (std::tuple(here[rank], total[rank]) < std::tuple(here[least], total[least])) least = rank;
      here[least] += costs(slot);
      total[least] += costs(slot);
      result[static_cast<std::size_t>(slot->index)] = static_cast<int>(least);
    }
  }
  return result;
}

TEST(ManyRanks, OwnersAreThoseOfAPlainSearch) {
  std::mt19937_64 random(8);
  for (const int ranks : {1, 2, 3, 5, 8, 40}) {
    for (int round = 0; round < 40; ++round) {
      const Case each = random_case(random);
      const Layout layout(each.specs, ranks);
      ASSERT_EQ(owners(layout, each.rules), plain_owners(layout, each)) << ranks << " ranks"
                                                                        << ", round " << round;
    }
  }
}

}  // namespace zero::many_ranks_test
