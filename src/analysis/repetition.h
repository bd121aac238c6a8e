// Training repeats itself. What allocates a block need not be listened to where it can be told from what allocated the
// block at the same place of an earlier round, which is what happens from the end of a pass backward to the end of the
// next. No torch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

namespace zero {

// What shows of an allocation without listening.
struct AllocationSign {
  std::int64_t bytes = 0;
  const void* node = nullptr;  // the kind of autograd's node that runs; null: none

  bool operator==(const AllocationSign&) const = default;
};

class Repetition {
 public:
  // An allocation of this round that was listened to, by the operator of that name.
  void add(const AllocationSign& sign, std::string_view operation);
  // The operator of an allocation that was not; null if no earlier round went on like this one.
  const std::string* next(const AllocationSign& sign);
  // Begins the next round. Whether so many in a row have been like earlier ones that the next will be as well. How many
  // that takes grows with each that departed: rounds may take turns.
  bool end_round();

 private:
  static constexpr std::size_t kMostRounds = 32;
  static constexpr std::size_t kMostEntries = 1 << 16;  // of a round that is kept

  struct Entry {
    AllocationSign sign;
    const std::string* operation;

    bool operator==(const Entry&) const = default;
  };
  using Round = std::vector<Entry>;

  std::unordered_set<std::string> names_;
  std::list<Round> rounds_;       // that differ, the latest first
  Round round_;                   // this one
  const Round* alike_ = nullptr;  // one of rounds_ that has gone like this one so far; null: not looked for
  bool whole_ = true;             // what allocated is known of all of it
  std::size_t alike_in_a_row_ = 0;
  std::size_t enough_ = 2;
};

}  // namespace zero
