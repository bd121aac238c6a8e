// Which storages of a micro-batch have their memory and which have lost it, and what is run again, in which order, when
// an operator touches one that has: the rules alone. The micro-batch itself goes by them (backwards/
// activation_window.h), and so does whoever foretells it from its trace (partition/activation_plan.h): one code, so
// that what is foretold is what happens.
//
// A storage that is missing is made again by the operators that wrote it, in order, from the versions that these read:
// such as are there no more are made before, in memory of their own, and forgotten when the last that needs them has
// run. What died but is needed so stays (it is held) until it is not, or goes like others. Or its values were stored
// when it was dropped, and are fetched.
//
// Thread-safety: none.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "partition/whereabouts.h"

namespace zero {

// What a micro-batch, and whoever foretells it, do in their own ways.
class ResidueSteps : public Whereabouts {
 protected:
  using Whereabouts::Whereabouts;

  // Storage `storage`, which may be one that died and was held, has lost its memory, its values being `stored` or not.
  virtual void dropped(int storage, bool stored) = 0;
  // Stored values are brought, to be made() of; and have no more use.
  virtual void fetch(int storage) = 0;
  virtual void discard(int storage) = 0;
  // Runs the operator for the storage, which is its first writer (`first`) or has what the one before has written.
  virtual void recompute(int op, int storage, bool first) = 0;
  // What recompute() made is the storage's memory, or that of a version which is forgotten later.
  virtual void made(int storage, Key version, bool in_place) = 0;
  // It has its memory again, as the one that was to be made or with another result of an operator that ran for that.
  virtual void came(int /*storage*/) {}
  virtual void forgotten(Key version) = 0;
  // A storage that died has no more use.
  virtual void freed(int storage) = 0;
  // This version may have to be made again: of what was dropped, died or was written over.
  virtual void may_be_made(int storage, int version) = 0;
  // Room for so many bytes more, before an operator or one that is run again.
  virtual void make_room(std::int64_t bytes) = 0;
  // Bytes of stored values that are there already, to be fetched.
  virtual std::int64_t arrived(int /*storage*/) const { return 0; }
  // The next execution needs so many in all.
  virtual void needs(std::int64_t /*bytes*/) {}
  // Bytes that are there, with those that the trace knows nothing of.
  virtual std::int64_t held() const = 0;
};

class Residue : public ResidueSteps {
 public:
  explicit Residue(OperatorTrace& trace, StoredWay way = {}) : ResidueSteps(trace, way) {}

  // Largest sum of what was there, with what each operator needed beside; runs of operators, those again included, and
  // those alone with the time of the trace.
  std::int64_t peak() const { return peak_; }
  struct Ran {
    std::int64_t all = 0, again = 0, nanoseconds = 0;
    std::int64_t moved = 0;  // bytes that were stored, and fetched
  };
  const Ran& so_far() const { return ran_; }
  std::int64_t executions() const { return ran_.all; }

 protected:
  // -- What goes on in a micro-batch, operator by operator.
  // Arguments of the operator `now_` are there from here to unpin().
  void bring(std::span<const int> storages);
  void unpin(std::span<const int> storages);
  void born(int storage);
  void written(int storage) { ++state(storage).version; }
  void die(int storage);
  void drop(int storage, bool stores);
  // The same by a plan, if it is there and comes back: storages may end earlier or later than was foretold, and what
  // was to be made of them stays then.
  void drop_as_planned(int storage, bool stores);
  // It is there, and is never dropped from here on.
  void keep(int storage);
  void reach(std::int64_t bytes) {
    peak_ = std::max(peak_, held() + bytes);
    needs(held() + bytes);
  }

  // Whether it can be dropped, as far as its place in the micro-batch goes.
  bool can_go(int storage) const;
  // Those that died and are there for what comes of them.
  const std::vector<int>& held_dead() const { return held_; }
  // An operator is about to write these: what comes of a version that cannot be made again from then on is made before.
  void before_overwriting(std::span<const StorageUse> uses);
  // These operators are not run again from here on: what they are needed for is made before.
  void stale(const std::vector<int>& operators);
  void ran() { ++ran_.all; }

  std::int64_t bytes_ = 0;  // of storages that are there, versions and held ones included
  std::int64_t peak_ = 0;
  std::vector<int> went_stale_;  // operators

 private:
  struct Version {
    int storage, version;
    int uses = 1;
    bool fetched = false;  // of what was stored
    bool apart = false;    // in memory of its own
  };
  void bury(int storage);
  void let_go();
  void forget_stored(int storage);
  void is_there(int storage);
  void require(int storage, int version, bool touched);
  void make(Key key);
  void make_from_stored(Version& made, Key key);
  void run_again(int number, int storage, bool first);
  void release(int storage, int version);

  std::unordered_map<Key, Version> versions_;  // to be made, or apart
  std::vector<Key> order_;
  std::vector<int> held_;       // dead, for what comes of them
  bool fewer_missing_ = false;  // since held_ was looked through
  Ran ran_;
};

}  // namespace zero
