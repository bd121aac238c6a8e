// Which units are resident and which one goes next: least recently used first, under a budget of
// bytes. Pure policy: the pager moves the bytes, the estimator only counts them, both through this
// class, so that what is predicted is what happens. Every call costs O(1) plus O(1) a unit it looks at.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "zero/layout.h"
#include "zero/plan.h"

namespace zero {

class Residency {
 public:
  // A unit is an index into `unit_bytes`. At first none is resident. `ahead`: how many units are brought before they
  // are used.
  Residency(std::vector<std::int64_t> unit_bytes, std::int64_t budget, std::size_t ahead = 1);

  // Makes `unit`, which is not resident, resident, and returns the units that must be released before,
  // least recently used first. They are no longer resident. Neither `keep` nor a pinned unit is among
  // them: where nothing else is left the budget is exceeded. `unit` becomes the most recently used; if
  // `keep` is given (resident; a prefetch on its behalf), the next less recent than `keep`.
  std::vector<int> admit(int unit, int keep = -1);

  bool resident(int unit) const { return at(unit).next != kOut; }
  // Makes a resident unit the most recently used.
  void touch(int unit);
  // How many of the units that are expected to be used after `unit`, the next one first, are to be resident beside it:
  // as many as are brought ahead and are within the budget together. -1 ends them.
  std::size_t ahead_of(int unit, std::span<const int> expected) const;

  // While pinned, as often as unpinned, a unit is not released by admit().
  void pin(int unit) { ++at(unit).pins; }
  void unpin(int unit) { --at(unit).pins; }

  // Makes a unit, pinned or not, not resident; nothing happens if it was not.
  void drop(int unit);
  void clear();

  std::vector<int> residents() const;  // least recently used first
  std::int64_t bytes() const { return resident_bytes_; }
  std::int64_t budget() const { return budget_; }

 private:
  // The residents form a ring through `next` (more recent) and `previous`; the last node is its head.
  static constexpr int kOut = -1;
  struct Node {
    std::int64_t bytes = 0;
    int next = kOut;
    int previous = kOut;
    int pins = 0;
  };

  Node& at(int unit) { return nodes_[static_cast<std::size_t>(unit)]; }
  const Node& at(int unit) const { return nodes_[static_cast<std::size_t>(unit)]; }
  int head() const { return static_cast<int>(nodes_.size()) - 1; }
  void link(int unit, int before);
  void unlink(int unit);

  std::vector<Node> nodes_;
  std::int64_t budget_;
  std::size_t ahead_;
  std::int64_t resident_bytes_ = 0;
};

// For the layout's units under the plan's budget: of all of them where the plan keeps them whole, else by default that
// of the largest units: of the one that is used and those that are brought ahead. What is on another tier is read while
// the one before it is gathered.
// Of what other ranks hold those are units_ahead(): as many as the plan has on their way where all ranks gather
// together, and one where shard groups do, which are quick.
int units_ahead(const Plan& plan);
Residency residency(const Plan& plan, const Layout& layout);
Residency residency(const Plan& plan, std::vector<std::int64_t> unit_bytes);

}  // namespace zero
