// Collectives over a group of ranks. A Communicator is a value type over a shared implementation;
// a group of one rank costs nothing. No torch here: memory is described by views.
//
// Thread-safety: one Communicator is driven by one thread at a time. Operations are carried out in
// the order of the calls, and every rank of the group must make the same calls in the same order.
// The memory of a view must stay valid until the Pending of its operation has been waited for. In a process that was
// forked, operations of more than one rank throw StateError.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "zero/dtype.h"
#include "zero/pending.h"

namespace zero {

// `count` elements of `dtype` at `data`; `device` is the index of an accelerator, -1 for the CPU.
struct ConstView {
  const void* data = nullptr;
  std::int64_t count = 0;
  Dtype dtype = Dtype::f32;
  int device = -1;
  std::int64_t bytes() const { return count * size_of(dtype); }
};

struct View {
  void* data = nullptr;
  std::int64_t count = 0;
  Dtype dtype = Dtype::f32;
  int device = -1;
  std::int64_t bytes() const { return count * size_of(dtype); }
  operator ConstView() const { return {data, count, dtype, device}; }
};

enum class Collective : std::uint8_t { all_gather, reduce_scatter, all_reduce, all_to_all, broadcast, barrier };
inline constexpr int kCollectives = 6;
// "all_gather", ...
std::string_view name(Collective collective);

// Which leaves of the tree of a sum the ranks of a group bring to it: in the order of ranks `each` apiece, from `first`
// on, of `all`. By default one apiece, of as many as there are ranks.
struct Leaves {
  std::int64_t first = 0, each = 1, all = 0;
  bool operator==(const Leaves&) const = default;
};

// What one rank calls. An all_reduce or a broadcast has the same values as `in` and `out`, a barrier has none.
struct CollectiveCall {
  Collective collective = Collective::barrier;
  ConstView in = {};
  View out = {};
  int root = -1;       // of a broadcast
  Leaves leaves = {};  // of a reduce_scatter
};

// How the ranks of a group are spread over hosts, as one of them sees it. Over two levels gathers go across hosts and
// inside them apart, and so do reduce-scatters where the sums of hosts are no more bytes than what their ranks bring.
struct Topology {
  int ranks_per_host = 0;  // that share this rank's host, itself included; 0: all of them
  bool two_levels = false;
  int first = -1;  // of those ranks, which are neighbours; -1: each host has as many, in order
  bool operator==(const Topology&) const = default;
};

class SplitQueue;

// One backend. Contracts of the operations: class Communicator, which checks the arguments before a backend gets them.
class CommunicatorImpl {
 public:
  CommunicatorImpl();
  virtual ~CommunicatorImpl() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual std::string_view backend() const = 0;
  virtual Pending run(const CollectiveCall& call) = 0;
  virtual std::shared_ptr<CommunicatorImpl> split(int color, int key) = 0;
  virtual std::shared_ptr<void> own_memory(std::int64_t) { return nullptr; }
  virtual std::shared_ptr<void> common_memory(std::int64_t) { return nullptr; }
  virtual Topology topology() const { return {}; }
  // The same ranks for memory of a device, this rank's being `device`. Null where they are not joined so, on all of
  // them. Collective.
  virtual std::shared_ptr<CommunicatorImpl> on_device(int /*device*/) { return nullptr; }
  // Where groups share links, what long operations of this one send goes before that of others, from the next one on.
  virtual void go_first() {}
  // This rank has failed elsewhere, and makes no more calls: those who wait for it here, or will, fail at once and say
  // why. No call of it is under way.
  virtual void give_up(const std::string& /*why*/) {}
  // How long an operation waits for the peers.
  virtual std::chrono::milliseconds time_limit() const = 0;
  // For engines that are built on several threads at once.
  SplitQueue& splits() const { return *splits_; }

 private:
  std::shared_ptr<SplitQueue> splits_;
};

// Every operation is collective. It returns when it is under way: its Pending tells of its end, and throws the
// CommError that it failed with. A view without memory, counts or dtypes that do not fit, and a root that is not there
// are a ConfigError of the call, before anything is exchanged, which names rank and operation. What is added up has any
// dtype but u8. Counts and dtypes are the same on every rank.
class Communicator {
 public:
  Communicator();  // one rank
  // A backend. Throws ConfigError for null.
  explicit Communicator(std::shared_ptr<CommunicatorImpl> impl);

  // These ask no peer, on any thread.
  int rank() const;
  int size() const;
  Topology topology() const;
  std::string_view backend() const;  // "self", "threads", "shared memory", "hosts", "tcp", "gloo", "nccl"

  // Every rank's shard, in rank order, into `whole` (whole.count == size() * shard.count, same
  // dtype). `shard` may be this rank's slot of `whole`. Wire: (N-1) shard bytes a rank.
  Pending all_gather(ConstView shard, View whole) const { return run({Collective::all_gather, shard, whole}); }

  // shard[i] = sum over ranks of whole_r[rank() * shard.count + i], added along one binary tree over
  // the rank's index: pairs, then pairs of pairs, left-overs joined from the small end.
  // shard.dtype == accumulation(whole.dtype). `shard` may be this rank's slot of `whole` when the
  // dtypes are equal. Temporary memory is constant. Wire: (N-1) slices of `whole` a rank.
  //
  // With `leaves`, along the tree of leaves.all leaves, whose nodes are [k 2^j, (k + 1) 2^j), cut off at its end: a
  // rank brings the sums of the largest nodes that cover its leaves, one whole behind the other, in room for as many as
  // the rank with most has; what comes of it are those of the largest nodes that cover all of theirs, one shard behind
  // the other. So one order of a sum can be gone along in several reduce_scatters. Where several sums come of it,
  // `shard` is no part of `whole`.
  Pending reduce_scatter(ConstView whole, View shard, const Leaves& leaves = {}) const {
    return run({Collective::reduce_scatter, whole, shard, -1, leaves});
  }

  // Sums in place, in the same order on every rank, so that all ranks hold the same bits; any count.
  // bf16 and fp16 are added in fp32 and rounded once.
  Pending all_reduce(View values) const { return run({Collective::all_reduce, values, values}); }

  // Slice p of `input` goes to slice rank() of rank p's `output`; counts divide by size().
  Pending all_to_all(ConstView input, View output) const { return run({Collective::all_to_all, input, output}); }

  // Rank `root`'s values into those of all others.
  Pending broadcast(View values, int root) const { return run({Collective::broadcast, values, values, root}); }

  // Complete when every rank has called it.
  Pending barrier() const { return run({Collective::barrier}); }

  // Ranks with the same color form a group, ordered by (key, rank), which another thread than this group's may drive.
  // Collective. Blocks, and throws what fails.
  Communicator split(int color, int key) const;

  // Memory of this rank, a multiple of 4 KiB, from which the peers read in place: a collective whose
  // views lie in such memory on every rank copies nothing in between. Null where the backend has none
  // (only shared memory has). Uninitialised. Throws ConfigError when the host has no room for it. Not collective.
  std::shared_ptr<void> own_memory(std::int64_t bytes) const { return impl_->own_memory(bytes); }

  // The same memory on every rank, zero at first: an all_gather from one's slot of it, into it, is a
  // barrier. Collective; null where the backend has none.
  std::shared_ptr<void> common_memory(std::int64_t bytes) const { return impl_->common_memory(bytes); }

  // The backend, which copies of a Communicator share.
  const std::shared_ptr<CommunicatorImpl>& impl() const { return impl_; }

 private:
  Pending run(const CollectiveCall& call) const;

  std::shared_ptr<CommunicatorImpl> impl_;
};

}  // namespace zero
