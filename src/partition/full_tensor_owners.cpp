#include "partition/full_tensor_owners.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <tuple>
#include <utility>

#include "base/exact_sum.h"
#include "partition/moments.h"

namespace zero {
namespace {

bool owned(const ParameterRule& rule) {
  const auto work = full_tensor_work(rule.optimizer);
  return work && work->owner;
}

// Newton-Schulz multiplies by matrices of the smaller side; Adafactor goes over the elements.
double cost(const ParameterRule& rule, std::int64_t numel) {
  if (!std::holds_alternative<Muon>(rule.optimizer)) return static_cast<double>(numel);
  const Matrix m = hidden_shape(rule.shape);
  return static_cast<double>(numel) * static_cast<double>(std::min(m.rows, m.columns));
}

// What each rank has to do, in the unit at hand and in all. Ranks without anything are not looked at.
class Loads {
 public:
  explicit Loads(int ranks) : ranks_(ranks) {}

  // Returns the rank that does it: who has least of the unit, then least of all.
  int give(double cost) {
    if (fresh_ < ranks_ && (idle_.empty() || Load{0, 0, fresh_} < *idle_.begin())) idle_.emplace(0, 0, fresh_++);
    auto& from = busy_.empty() || (!idle_.empty() && *idle_.begin() < *busy_.begin()) ? idle_ : busy_;
    auto node = from.extract(from.begin());
    auto& [here, total, rank] = node.value();
    here += cost;
    total += cost;
    const int chosen = rank;
    busy_.insert(std::move(node));
    return chosen;
  }

  void end_unit() {
    while (!busy_.empty()) {
      auto node = busy_.extract(busy_.begin());
      std::get<0>(node.value()) = 0;
      idle_.insert(std::move(node));
    }
  }

 private:
  using Load = std::tuple<double, double, int>;  // of the unit, of all, rank
  int ranks_;
  int fresh_ = 0;        // no rank from here on has anything
  std::set<Load> idle_;  // without anything of the unit
  std::set<Load> busy_;
};

std::int64_t product(std::vector<std::int64_t>::const_iterator begin, std::vector<std::int64_t>::const_iterator end) {
  return std::accumulate(begin, end, std::int64_t{1}, std::multiplies<>());
}

// Adafactor's: the last two dimensions.
Matrix last_two(const std::vector<std::int64_t>& shape) {
  if (shape.size() < 2) return {1, product(shape.begin(), shape.end())};
  return {shape[shape.size() - 2], shape.back()};
}

}  // namespace

std::optional<FullTensorWork> full_tensor_work(const Optimizer& optimizer) {
  if (std::holds_alternative<Muon>(optimizer)) return FullTensorWork{.owner = true, .narrow = true};
  if (std::holds_alternative<Lamb>(optimizer)) return FullTensorWork{.norms = true};
  if (const auto* adafactor = std::get_if<Adafactor>(&optimizer))
    return FullTensorWork{.owner = adafactor->factored, .norms = true};
  return {};
}

int passes(const Optimizer& optimizer) {
  const auto work = full_tensor_work(optimizer);
  return work ? 1 + (work->norms ? 1 : 0) + (work->owner ? 1 : 0) : 1;
}

Matrix hidden_shape(const std::vector<std::int64_t>& shape) {
  return shape.empty() ? Matrix{} : Matrix{shape.front(), product(shape.begin() + 1, shape.end())};
}

FactorShapes factor_shapes(const std::vector<std::int64_t>& shape) {
  FactorShapes shapes{shape, shape};
  shapes.rows.back() = 1;
  shapes.columns[shape.size() - 2] = 1;
  return shapes;
}

std::int64_t owned_values(const ParameterRule& rule) {
  const auto* adafactor = std::get_if<Adafactor>(&rule.optimizer);
  if (adafactor == nullptr || !adafactor->factored || rule.shape.size() < 2) return 0;
  const auto [rows, columns] = last_two(rule.shape);
  const std::int64_t matrices = product(rule.shape.begin(), rule.shape.end() - 2);
  return matrices * (rows + columns);
}

FullTensorUnit full_tensor_unit(const UnitLayout& unit, const std::vector<ParameterRule>& rules) {
  FullTensorUnit result;
  bool narrow = true;
  for (std::size_t i = 0; i < unit.slots().size(); ++i) {
    const auto work = full_tensor_work(rule_of(unit.slots()[i], rules).optimizer);
    if (!work) continue;
    result.any = true;
    result.owned = result.owned || work->owner;
    narrow = narrow && (work->narrow || !work->owner);
    if (work->norms) result.normed.push_back(static_cast<int>(i));
  }
  const Dtype wide = accumulation(unit.dtype());
  result.wire = narrow && wide == Dtype::f32 ? Dtype::bf16 : wide;
  return result;
}

void each_owner(const Layout& layout, const std::vector<ParameterRule>& rules, const Repeats& repeats,
                const std::function<void(const UnitLayout&, const Slot&, int owner)>& tell) {
  Loads loads(layout.ranks());
  std::vector<std::size_t> units(layout.units().size());
  std::iota(units.begin(), units.end(), std::size_t{0});
  std::stable_partition(units.begin(), units.end(), [&](std::size_t unit) { return layout.units()[unit].trainable(); });
  for (const std::size_t index : units) {
    const UnitLayout& unit = layout.units()[index];
    std::vector<std::pair<double, const Slot*>> slots;
    for (const Slot& slot : unit.slots())
      if (owned(rule_of(slot, rules))) slots.emplace_back(cost(rule_of(slot, rules), slot.numel), &slot);
    std::ranges::stable_sort(slots, std::greater(), &std::pair<double, const Slot*>::first);
    for (std::int64_t i = 0; i < repeats[index]; ++i) {
      for (const auto& [work, slot] : slots) tell(unit, *slot, loads.give(work));
      loads.end_unit();
    }
  }
}

std::vector<int> owners(const Layout& layout, const std::vector<ParameterRule>& rules) {
  std::vector<int> result(rules.size(), -1);
  each_owner(layout, rules, Repeats(layout.units().size(), 1), [&](const UnitLayout&, const Slot& slot, int owner) {
    result[static_cast<std::size_t>(slot.index)] = owner;
  });
  return result;
}

std::int64_t input_bytes(const UnitLayout& unit, const FullTensorUnit& work) {
  return work.owned ? unit.length() * size_of(work.wire) : 0;
}

std::int64_t step_bytes(const UnitLayout& unit, const FullTensorUnit& work, std::int64_t held) {
  return work.any ? held * size_of(accumulation(unit.dtype())) : 0;
}

std::int64_t norm_words(const FullTensorUnit& work) {
  return static_cast<std::int64_t>(work.normed.size()) * 2 * ExactSum::kLimbs;
}

}  // namespace zero
