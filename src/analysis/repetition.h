// Training repeats itself. What allocates a block need not be listened to where it can be told from what allocated the
// block at the same place of an earlier round, which is what happens from the end of a pass backward to the end of the
// next. No torch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <span>
#include <vector>

#include "analysis/names.h"

namespace zero {

// What shows of an allocation without listening.
struct AllocationSign {
  std::int64_t bytes = 0;
  const void* node = nullptr;  // the kind of autograd's node that runs; null: none

  bool operator==(const AllocationSign&) const = default;
};

class Repetition {
 public:
  // An allocation of this round that was listened to, and what ran.
  void add(const AllocationSign& sign, const Running& running);
  // What ran at an allocation that was not; null if no earlier round went on like this one.
  const Running* next(const AllocationSign& sign);
  // Begins the next round. Whether so many in a row have been like earlier ones that the next will be as well. How many
  // that takes grows with each that departed: rounds may take turns.
  bool end_round();

 private:
  static constexpr std::size_t kMostRounds = 32;
  static constexpr std::size_t kMostEntries = 1 << 16;  // of a round that is kept

  struct Entry {
    AllocationSign sign;
    Running running;

    bool operator==(const Entry&) const = default;
  };
  using Round = std::vector<Entry>;

  std::span<const Entry> so_far() const;
  const Round* one_that_goes_on(const AllocationSign& sign) const;
  void depart();

  std::list<Round> rounds_;       // that differ, the latest first
  const Round* alike_ = nullptr;  // one of rounds_ whose first length_ entries are those of this one
  std::size_t length_ = 0;
  Round round_;        // this one, without one alike
  bool whole_ = true;  // what allocated is known of all of it
  std::size_t alike_in_a_row_ = 0;
  std::size_t enough_ = 2;
};

}  // namespace zero
