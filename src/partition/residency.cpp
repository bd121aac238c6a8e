#include "partition/residency.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "partition/routes.h"
#include "partition/touch_order.h"

namespace zero {

Residency::Residency(std::vector<std::int64_t> unit_bytes, std::int64_t budget, std::size_t ahead)
    : nodes_(unit_bytes.size() + 1), budget_(budget), ahead_(ahead) {
  for (std::size_t i = 0; i < unit_bytes.size(); ++i) nodes_[i].bytes = unit_bytes[i];
  nodes_.back().next = nodes_.back().previous = head();
}

void Residency::link(int unit, int before) {
  const int previous = at(before).previous;
  at(unit).previous = previous;
  at(unit).next = before;
  at(previous).next = unit;
  at(before).previous = unit;
}

void Residency::unlink(int unit) {
  at(at(unit).previous).next = at(unit).next;
  at(at(unit).next).previous = at(unit).previous;
}

std::vector<int> Residency::admit(int unit, int keep) {
  std::vector<int> released;
  const std::int64_t room = budget_ - at(unit).bytes;
  for (int old = at(head()).next; old != head() && resident_bytes_ > room;) {
    const int next = at(old).next;
    if (old != keep && at(old).pins == 0 && at(old).bytes > 0) {
      drop(old);
      released.push_back(old);
    }
    old = next;
  }
  link(unit, keep < 0 ? head() : keep);
  resident_bytes_ += at(unit).bytes;
  return released;
}

std::size_t Residency::ahead_of(int unit, std::span<const int> expected) const {
  std::int64_t bytes = at(unit).bytes;
  std::size_t many = 0;
  for (; many < std::min(ahead_, expected.size()) && expected[many] >= 0; ++many)
    if ((bytes += at(expected[many]).bytes) > budget_) break;
  return many;
}

void Residency::touch(int unit) {
  unlink(unit);
  link(unit, head());
}

void Residency::drop(int unit) {
  if (!resident(unit)) return;
  unlink(unit);
  at(unit).next = at(unit).previous = kOut;
  resident_bytes_ -= at(unit).bytes;
}

void Residency::clear() {
  for (const int unit : residents()) drop(unit);
}

std::vector<int> Residency::residents() const {
  std::vector<int> units;
  for (int unit = at(head()).next; unit != head(); unit = at(unit).next) units.push_back(unit);
  return units;
}

int units_ahead(const Plan& plan) {
  return Routes(plan).within() == Axis::data ? plan.on_their_way() : 1;
}

Residency residency(const Plan& plan, const Layout& layout) {
  std::vector<std::int64_t> bytes;
  for (const UnitLayout& unit : layout.units()) bytes.push_back(unit.bytes());
  return residency(plan, std::move(bytes));
}

Residency residency(const Plan& plan, std::vector<std::int64_t> unit_bytes) {
  static_assert(Plan::kMostOverlap <= static_cast<int>(kMostAhead));
  const auto ahead = Routes(plan).brings() ? kMostAhead : static_cast<std::size_t>(units_ahead(plan));
  std::vector<std::int64_t> largest(1 + ahead);
  std::ranges::partial_sort_copy(unit_bytes, largest, std::greater<>());
  const std::int64_t usual = std::accumulate(largest.begin(), largest.end(), std::int64_t{0});
  const std::int64_t all = std::accumulate(unit_bytes.begin(), unit_bytes.end(), std::int64_t{0});
  const std::int64_t given = plan.resident_budget() > 0 ? plan.resident_budget() : usual;
  return {std::move(unit_bytes), Routes(plan).keeps_whole() ? all : given, ahead};
}

}  // namespace zero
