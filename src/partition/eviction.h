// Which storages of a micro-batch lose their memory first where it is short: by what their way back costs for what they
// free and for how far off their next use is (the score of DTR, Kirisame et al. 2021), each by the way that costs
// least.
//
// Thread-safety: none.
#pragma once

#include <cmath>
#include <cstdint>
#include <optional>
#include <random>
#include <vector>

#include "partition/residue.h"

namespace zero {

// A factor of scores: 1, or for tests, where there is a seed, anything.
class Chance {
 public:
  explicit Chance(std::uint32_t seed = 0) : seed_(seed), random_(seed) {}
  double operator()() { return seed_ == 0 ? 1 : std::exp(std::normal_distribution<double>(0, 2)(random_)); }

 private:
  std::uint32_t seed_;
  std::mt19937 random_;
};

class Eviction : public Residue {
 protected:
  Eviction(OperatorTrace& trace, std::int64_t budget, std::uint32_t seed, StoredWay way)
      : Residue(trace, way), budget_(budget), chance_(seed) {}

  // Drops what goes first until `bytes` more are within the budget.
  void evict(std::int64_t bytes);

  // How far from now the storage's next use is, or its last one.
  virtual double distance(int storage) = 0;
  // Whether nothing is dropped any more, since it would be made again over and over.
  virtual bool gives_up() = 0;
  // Whether who touches the storage next may have other values than it had, by a way that is not exact.
  virtual bool inexact_next(int /*storage*/) { return false; }

  std::int64_t budget_;
  double exponent_ = 1;  // of the distance

 private:
  struct Candidate {
    double score;  // at least so much, until it is known what all that is missing costs as well
    int storage;
    double chance_again, chance_stored;
    bool known = false;
    bool stores = false;
  };

  static bool after(const Candidate& one, const Candidate& other);
  void consider(int storage);
  bool knows(Candidate& each);
  double for_bytes(std::int64_t nanoseconds, int storage, bool stores) const;
  bool storable(int number) const { return way() && state(number).live && storage(number).storable(); }
  bool may_be_stored(int storage);
  void rank();
  void evict_ranked(std::int64_t bytes);

  Chance chance_;
  std::vector<Candidate> ranked_;  // a heap, of which the first goes first
  std::int64_t ranked_until_ = 0;  // the execution from which on it is out of date
};

}  // namespace zero
