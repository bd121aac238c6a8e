// What the operators of a micro-batch did to storages: which they made, read and wrote, what that took, and for how
// long. Storages and operators are numbers in the order in which they came. A storage has versions, as many as
// operators have written it; the first made it.
#pragma once

#include <climits>
#include <cstdint>
#include <deque>
#include <memory_resource>
#include <vector>

namespace zero {

// Of few elements. Who records a trace has memory for all of its lists; a copy of the trace has its own.
template <class T>
using TracedList = std::pmr::vector<T>;

// Of a version of a storage, by an operator, which may write the next.
struct StorageUse {
  int storage;
  int version;
  bool written;
};

struct TracedOperator {
  std::uint64_t identity = 0;    // the same where the same operator does the same to the same storages
  std::uint64_t alike = 0;       // the same for operators that take equally long
  TracedList<StorageUse> uses;   // one for each argument
  TracedList<int> results;       // that it made
  std::vector<int> units;        // of parameters that it reads, which are gathered for it
  std::int64_t nanoseconds = 0;  // that it took
  std::int64_t work = 0;         // about as many, by its bytes alone: the same on all ranks
  std::int64_t result_bytes = 0;
  std::int64_t scratch_bytes = 0;  // beside the results, for its own time
  std::int64_t other_bytes = 0;    // that were held before it, and that are none of the trace's storages
  bool again = false;              // it can be run once more, with the same results
  bool backward = false;
  bool rounds = false;  // it is none of the program's: it rounds what it touches
};

struct TracedStorage {
  static constexpr int kLives = INT_MAX, kNever = INT_MAX;

  std::int64_t bytes = 0;
  TracedList<int> writers = {};            // operators, the one that made it first
  TracedList<int> readers = {};            // and those that wrote it
  int death = kLives;                      // before which operator
  int whole_from = 1;                      // the first version of which operators have written all
  bool kept = false;                       // it must not be dropped
  std::int64_t stored_bytes = kNotStored;  // that it takes while its values are stored

  static constexpr std::int64_t kNotStored = -1;  // they cannot be
  bool storable() const { return stored_bytes != kNotStored; }
};

struct OperatorTrace {
  std::vector<TracedOperator> operators;
  std::deque<TracedStorage> storages;
};

}  // namespace zero
