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

#include "partition/operator_trace.h"
#include "partition/stored_way.h"

namespace zero {

// What a micro-batch, and whoever foretells it, do in their own ways.
class ResidueSteps {
 public:
  virtual ~ResidueSteps() = default;

 protected:
  // A version of a storage.
  using Key = std::int64_t;

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
  // When the storage, or what has lost its memory and comes of it, is used next, as an operator's number.
  static constexpr int kAnyTime = INT_MAX;
  virtual int needed_from(int /*storage*/) { return kAnyTime; }
  // What it costs to run an operator again, in nanoseconds, at least and then; kImpossible where what it reads is not
  // to be had then.
  static constexpr std::int64_t kImpossible = -1;
  virtual std::int64_t price(const TracedOperator& op) const { return op.nanoseconds; }
  virtual std::int64_t price_at(int /*when*/, const TracedOperator& op) const { return price(op); }
  // Bytes that are there, with those that the trace knows nothing of.
  virtual std::int64_t held() const = 0;
};

// Over versions of storages, each from where it has come.
class VersionWalk {
 public:
  void begin(std::size_t storages) {
    walked_.resize(storages);
    ++walk_;
  }
  // From which version on the storage was not yet walked over; it is now, up to `version`.
  int from(int storage, int version) {
    Walked& walked = walked_[static_cast<std::size_t>(storage)];
    const int from = walked.walk == walk_ ? walked.version : 0;
    walked = {walk_, std::max(from, version)};
    return from;
  }
  std::vector<int> operators;  // to be walked over

  bool has(int storage) const { return walked_[static_cast<std::size_t>(storage)].walk == walk_; }

 private:
  struct Walked {
    int walk = 0, version = 0;
  };
  std::vector<Walked> walked_;
  int walk_ = 0;
};

class Residue : public ResidueSteps {
 public:
  explicit Residue(OperatorTrace& trace, StoredWay way = {}) : trace_(trace), way_(way) {}
  Residue(const Residue&) = delete;
  Residue& operator=(const Residue&) = delete;

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
  struct State {
    bool live = false;     // somebody has it
    bool present = false;  // with its memory
    bool stored = false;   // without, its values being elsewhere
    int version = 0;
    int pins = 0;
    int last_use = 0;
  };
  static Key key(int storage, int version) {
    return static_cast<Key>(storage) << kVersionBits | static_cast<Key>(version);
  }
  struct Alive {
    std::vector<int> storages;  // that live, and some that did
    std::size_t count = 0;
    std::int64_t missing = 0;  // of these, whose values are nowhere
  };
  static constexpr int kVersionBits = 24;

  // -- What goes on in a micro-batch, operator by operator.
  // Arguments of the operator `now_` are there from here to unpin().
  void bring(std::span<const int> storages);
  void unpin(std::span<const int> storages);
  void born(int storage);
  void written(int storage) { ++state(storage).version; }
  void die(int storage);
  void drop(int storage, bool stores);
  // It is there, and is never dropped from here on.
  void keep(int storage);
  void need(std::int64_t bytes) {
    peak_ = std::max(peak_, held() + bytes);
    needs(held() + bytes);
  }

  // Nanoseconds to make the storage again, all that is missing included, or kImpossible; to store it and to fetch it.
  std::int64_t cost(int storage);
  // Of it the operators that wrote the storage alone, or kImpossible.
  std::int64_t least_cost(int storage) const;
  std::int64_t price_to_store(int storage) const;
  // Whether it can be dropped, as far as its place in the micro-batch goes.
  bool can_go(int storage) const;
  const Alive& alive() const { return alive_; }
  // Those that died and are there for what comes of them.
  const std::vector<int>& held_dead() const { return held_; }
  // Whether a version can be made again from what is there.
  bool feasible(int storage, int version, int when = kAnyTime);
  // An operator is about to write these: what comes of a version that cannot be made again from then on is made before.
  void before_overwriting(const std::vector<StorageUse>& uses);
  // These operators are not run again from here on: what they are needed for is made before.
  void stale(const std::vector<int>& operators);
  // Whether something that has lost its memory is made of the storage as it is.
  bool needed(int storage);
  // All that has, and may be.
  std::vector<int> missing_of(int storage);

  State& state(int storage) { return states_[static_cast<std::size_t>(storage)]; }
  const State& state(int storage) const { return states_[static_cast<std::size_t>(storage)]; }
  TracedOperator& op(int number) const { return trace_.operators[static_cast<std::size_t>(number)]; }
  TracedStorage& storage(int number) const { return trace_.storages[static_cast<std::size_t>(number)]; }
  bool known(int storage) const { return static_cast<std::size_t>(storage) < states_.size(); }
  void ran() { ++ran_.all; }
  const StoredWay& way() const { return way_; }

  // Calls visit(op, use) for all uses of other storages by which a version came, from a version on.
  template <class Visit>
  void each_use(int of, int from, int version, const Visit& visit) {
    const auto& writers = storage(of).writers;
    for (int k = from; k < version; ++k)
      for (const StorageUse& use : op(writers[static_cast<std::size_t>(k)]).uses)
        if (use.storage != of) visit(use);
  }
  void begin_walk() { walk_.begin(trace_.storages.size()); }

  OperatorTrace& trace_;
  std::int64_t bytes_ = 0;  // of storages that are there, versions and held ones included
  std::int64_t peak_ = 0;
  int now_ = 0;  // the operator that runs or is next
  VersionWalk walk_;
  std::vector<int> went_stale_;  // operators

 private:
  struct Version {
    int storage, version;
    int uses = 1;
    bool fetched = false;  // of what was stored
    bool apart = false;    // in memory of its own
  };
  // What a storage may be made of: the version of a storage that is there, or what one of some operators writes.
  struct Origin {
    int storage = -1;
    std::span<const int> operators = {};  // in order
  };
  std::int64_t cost_of(int storage, int version, bool first, int when, int& left);
  bool comes_of(int storage, const Origin& origin);
  bool version_comes_of(int storage, int version, const Origin& origin);
  std::vector<int> missing_results(const std::vector<int>& operators);
  void walk_readers(int storage);
  template <class Visit>
  void walk_missing(const Visit& visit);
  void free(int storage);
  void let_go();
  void forget_stored(int storage);
  void is_there(int storage);
  void require(int storage, int version, bool touched);
  void make(Key key);
  void make_from_stored(Version& made, Key key);
  void run_again(int number, int storage, bool first);
  void release(int storage, int version);

  std::vector<State> states_;
  VersionWalk origins_;  // within walk_
  Alive alive_;
  std::unordered_map<Key, Version> versions_;  // to be made, or apart
  std::vector<Key> order_;
  std::vector<int> held_;       // dead, for what comes of them
  bool fewer_missing_ = false;  // since held_ was looked through
  Ran ran_;
  StoredWay way_;
};

}  // namespace zero
