// Where the values of a micro-batch's storages are, and what can be made again of what, at which cost: the questions
// by which storages lose their memory and get it back (partition/residue.h). A storage that is missing comes of the
// operators that wrote it, and these of the versions that they read.
//
// Thread-safety: none.
#pragma once

#include <algorithm>
#include <climits>
#include <cstdint>
#include <span>
#include <vector>

#include "partition/operator_trace.h"
#include "partition/stored_way.h"

namespace zero {

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

class Whereabouts {
 public:
  // A version of a storage.
  using Key = std::int64_t;

  Whereabouts(OperatorTrace& trace, StoredWay way) : trace_(trace), way_(way) {}
  virtual ~Whereabouts() = default;
  Whereabouts(const Whereabouts&) = delete;
  Whereabouts& operator=(const Whereabouts&) = delete;

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

  // When the storage, or what has lost its memory and comes of it, is used next, as an operator's number.
  static constexpr int kAnyTime = INT_MAX;
  virtual int needed_from(int /*storage*/) { return kAnyTime; }
  // What it costs to run an operator again, in nanoseconds, at least and then; kImpossible where what it reads is not
  // to be had then.
  static constexpr std::int64_t kImpossible = -1;
  virtual std::int64_t price(const TracedOperator& op) const { return op.nanoseconds; }
  virtual std::int64_t price_at(int /*when*/, const TracedOperator& op) const { return price(op); }

  // Nanoseconds to make the storage again, all that is missing included, or kImpossible; to store it and to fetch it.
  std::int64_t cost(int storage);
  // Of it the operators that wrote the storage alone, or kImpossible.
  std::int64_t least_cost(int storage) const;
  std::int64_t price_to_store(int storage) const;
  // Whether a version can be made again from what is there.
  bool feasible(int storage, int version);
  // Whether something that has lost its memory is made of the storage as it is.
  bool needed(int storage);
  // All that has, and may be.
  std::vector<int> missing_of(int storage);
  // What has lost its memory and comes of these operators.
  std::vector<int> missing_results(const std::vector<int>& operators);

  const Alive& alive() const { return alive_; }
  State& state(int storage) { return states_[static_cast<std::size_t>(storage)]; }
  const State& state(int storage) const { return states_[static_cast<std::size_t>(storage)]; }
  TracedOperator& op(int number) const { return trace_.operators[static_cast<std::size_t>(number)]; }
  TracedStorage& storage(int number) const { return trace_.storages[static_cast<std::size_t>(number)]; }
  bool known(int storage) const { return static_cast<std::size_t>(storage) < states_.size(); }
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
  int now_ = 0;  // the operator that runs or is next
  std::vector<State> states_;
  Alive alive_;
  VersionWalk walk_;

 private:
  // What a storage may be made of: the version of a storage that is there, or what one of some operators writes.
  struct Origin {
    int storage = -1;
    std::span<const int> operators = {};  // in order
  };
  std::int64_t cost_of(int storage, int version, bool first, int when, int& left);
  bool comes_of(int storage, const Origin& origin);
  bool version_comes_of(int storage, int version, const Origin& origin);
  void walk_readers(int storage);
  template <class Visit>
  void walk_missing(const Visit& visit);

  VersionWalk origins_;  // within walk_
  StoredWay way_;
};

}  // namespace zero
