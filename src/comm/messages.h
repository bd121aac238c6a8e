// Collectives by messages between all pairs of ranks, which is what transports have in common that share no memory. A
// transport brings the messages of a round from rank to rank. Slices are exchanged directly between all pairs, and sums
// are added up along their tree, a chunk at a time.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/sum_tree.h"
#include "base/worker.h"
#include "comm/backend.h"
#include "comm/hosts.h"

namespace zero {

// Messages that are under way at once, at most one a peer and direction. The memory of one that was begun stays until
// the round ends, by when it is waited for or given up.
class MessageRound {
 public:
  virtual ~MessageRound() = default;
  // Begin; `bytes` are more than none, and as many on both sides.
  virtual void receive(void* data, std::int64_t bytes, int peer) = 0;
  virtual void send(const void* data, std::int64_t bytes, int peer) = 0;
  // Throw what they failed with, or when nothing moves for the time limit.
  virtual void wait_received() = 0;
  virtual void wait_sent() = 0;
};

struct MessageOptions {
  std::chrono::milliseconds timeout{};
  int world_rank = -1;  // what errors call this rank, where that is not its number in the group
  HostMap hosts = {};   // which ranks share one
};

// Operations run in order on one thread, so they are asynchronous. After a failure every one fails alike.
class MessageCommunicator : public CommunicatorImpl {
 public:
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  Topology topology() const override { return options_.hosts.topology(rank_); }
  std::chrono::milliseconds time_limit() const override { return options_.timeout; }
  Pending run(const CollectiveCall& call) override;

 protected:
  MessageCommunicator(int rank, int size, MessageOptions options);

  // On the communicator's thread, until leave() returns. Rounds of one call are numbered from 1 on.
  virtual std::unique_ptr<MessageRound> round(const Fingerprint& call, std::uint32_t number) = 0;
  // After a call that has failed, so that the peers fail at once instead of in time.
  virtual void close(const Fingerprint& call, const std::string& why) = 0;
  // What a transport's exceptions say.
  virtual std::string words_of(const std::exception& error) const { return error.what(); }

  // Collective: who is in this rank's group, and where in it this rank is.
  struct Split {
    std::uint64_t sequence = 0;
    std::vector<int> members;  // in the order of the new group
    int self = 0;
    MessageOptions options;
  };
  Split split_members(int color, int key);
  // Returns when every rank has called it; on the communicator's thread, for a transport that joins there.
  void await_peers();

  // What a transport does at first and at last, on the communicator's thread; what it throws at first is how joining
  // fails. A destructor calls leave(), before what its rounds need goes: it runs what was submitted, and ends.
  void join(const std::function<void()>& body);
  // False in a process that was forked, where nothing is run.
  bool leave(std::function<void()> body = [] {});
  std::uint64_t calls() const { return sequence_; }  // so far
  const MessageOptions& options() const { return options_; }

 private:
  // Takes the sources of `count` elements, by the parts of the sum, the first being element `at` of this rank's slice.
  using Sink = std::function<void(std::span<const void* const> sources, std::int64_t at, std::int64_t count)>;
  struct Outcome;
  class UnderWay;
  class Round;

  Outcome failed(const std::string& call, const std::string& why) const;
  Outcome attempt(const Fingerprint& call, const std::function<void()>& body);
  void carry_out(const CollectiveCall& call);
  Round next_round();
  template <class Action>
  void for_peers(Action action) const;
  void gather(const void* own, char* values, Slices slices, std::int64_t element);
  void reduce(const char* values, Dtype dtype, Slices slices, const SumParts& sum, const Sink& sink);
  void sum_slice(const CollectiveCall& call);
  void sum_small(View values);
  void sum_large(View values);
  void move(const CollectiveCall& call);

  int rank_;
  int size_;
  MessageOptions options_;
  Fingerprint call_;  // under way; with what follows, on the worker only
  std::uint32_t round_ = 0;
  std::uint64_t sequence_ = 0;
  Tally tally_;
  std::string broken_;  // the first failure
  ProcessOfOrigin origin_;
  std::unique_ptr<Worker> worker_;
};

}  // namespace zero
