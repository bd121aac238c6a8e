// Collectives of ranks that see each other's memory: each reads what its peers published and writes
// only its own. Where that memory is private to each rank, the same collectives run piece by piece over
// a constant amount of it that all can see. Operations are complete when they return.
#pragma once

#include <optional>
#include <vector>

#include "base/sum_tree.h"
#include "comm/backend.h"
#include "comm/hosts.h"

namespace zero {

class DirectCommunicator : public CommunicatorImpl {
 public:
  Topology topology() const final { return hosts().topology(rank()); }
  Pending run(const CollectiveCall& call) final;

 protected:
  DirectCommunicator(HostMap hosts, int rank) : tally_(std::move(hosts), rank) {}

  enum class Reach {
    memory,  // peer(r) is what rank r published, until all have left
    copy,    // peer(r) is a copy of it, until the next call
    staged,  // what was published cannot be seen: it goes through staging()
  };

  // Returns when every rank is here with the same call; throws CommError when that cannot be.
  virtual Reach enter(const Fingerprint& call, ConstView published) = 0;
  // Between enter() and the end of the call: every rank has come as far as this.
  virtual void sync() = 0;
  virtual char* peer(int rank) = 0;
  // Memory of a rank that all can read, of kStagingHalf bytes; two of them, so that one is filled while the
  // other is read.
  virtual char* staging(int, int) { return nullptr; }

  std::uint64_t next_sequence() { return ++sequence_; }
  const HostMap& hosts() const { return tally_.hosts(); }

  static constexpr std::int64_t kStagingHalf = 256 * 1024;

 private:
  // A part of every slice that the ranks published: `count` elements from `begin`.
  struct Piece {
    std::int64_t begin;
    std::int64_t count;
    std::int64_t pitch;  // bytes from one slice to the next
    Reach reach;
  };

  // What a rank gets of a piece that all ranks show by source().
  void carry_out(const CollectiveCall& call, const Piece& piece, const std::optional<SumParts>& parts);
  void move(const CollectiveCall& call, const Piece& piece);
  void reduce(const CollectiveCall& call, const Piece& piece, const SumParts& sum);
  void sum(View values, const Piece& piece);
  // A copy of what a peer shows; and a sum, at `offset` of what each of them does.
  void fetch(int peer, void* to, const char* from, std::int64_t bytes);
  std::vector<const void*> to_add(std::int64_t offset, std::int64_t bytes);
  struct Cuts {
    int all, filled;  // slices of an input, of which the first have something
  };
  void stage(ConstView input, const Cuts& slices, const Piece& piece, char* to) const;
  char* source(int r) const { return sources_[static_cast<std::size_t>(r)]; }
  // The ranks, this one first, so that no rank is everybody's first.
  template <class Action>
  void for_ranks(Action action) const;

  Tally tally_;  // of the call under way
  std::uint64_t sequence_ = 0;
  std::vector<char*> sources_;  // of the piece at hand
};

}  // namespace zero
