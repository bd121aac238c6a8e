#include "comm/torch/c10d.h"

#include <ATen/ops/from_blob.h>
#include <sched.h>

#include <cstring>
#include <functional>
#include <optional>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "base/collective_rules.h"
#include "base/random.h"
#include "base/sum_tree.h"
#include "base/worker.h"
#include "comm/backend.h"
#include "comm/torch/torch_log.h"
#include "comm/tree_sum.h"
#include "zero/error.h"

namespace zero {
namespace {

using Group = c10d::ProcessGroupGloo;

constexpr std::int64_t kStaging = 1 << 20;  // bytes for the peers' chunks of a sum, two rounds of them
constexpr std::int64_t kLeastChunk = 64;    // elements
// An all_reduce of at most this many bytes is an exchange of everything and one local sum, a larger one a
// reduce_scatter and an all_gather.
constexpr std::int64_t kSmallAllReduce = 64 * 1024;
constexpr std::uint32_t kRounds = 1u << 16;  // with a tag of their own in one call
constexpr std::uint32_t kMarks = 1u << 14;

// Part of the tag of a call's messages. Ranks that call different operations thus wait until their time is up:
// Gloo would end the process over a message of a size that it does not expect.
std::uint32_t mark(const Fingerprint& call) {
  const std::string_view bytes(reinterpret_cast<const char*>(&call), sizeof call);
  return static_cast<std::uint32_t>(fnv1a(bytes) >> 32) % kMarks;
}

// Threads started in its lifetime do not preempt others when they wake up. Gloo's thread polls, at
// full speed, a connection that another thread has locked; had it preempted that thread on a busy
// host, it would poll until the end of its time slice, milliseconds for a message of microseconds.
class YieldingThreads {
 public:
  YieldingThreads() : policy_(sched_getscheduler(0)) { set(SCHED_BATCH); }
  ~YieldingThreads() { set(SCHED_OTHER); }
  YieldingThreads(const YieldingThreads&) = delete;
  YieldingThreads& operator=(const YieldingThreads&) = delete;

 private:
  void set(int policy) const {
    const sched_param none{};
    if (policy_ == SCHED_OTHER) sched_setscheduler(0, policy, &none);
  }

  int policy_;
};

std::shared_ptr<gloo::transport::Device> make_device(const GlooOptions& options) {
  const YieldingThreads scope;
  if (options.interface.empty()) return Group::createDeviceForHostname(options.address);
  return Group::createDeviceForInterface(options.interface);
}

c10::intrusive_ptr<Group> make_group(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                     const GlooOptions& options) {
  auto gloo = Group::Options::create(options.timeout);
  gloo->threads = 1;
  gloo->devices = {make_device(options)};
  return c10::make_intrusive<Group>(store, rank, size, gloo);
}

// An operation on the worker, and what it moved once it is complete.
class Counted final : public Pending::State {
 public:
  Counted(Pending operation, std::shared_ptr<const Moved> moved)
      : operation_(std::move(operation)), moved_(std::move(moved)) {}

  void wait() override { operation_.wait(); }
  void wait_in(const Stream& stream) override { operation_.wait(stream); }
  bool done() override { return operation_.done(); }
  Moved moved() const override { return *moved_; }

 private:
  Pending operation_;
  std::shared_ptr<const Moved> moved_;
};

// One round of messages, all under way at the same time.
class Round {
 public:
  Round(Group* group, int tag, std::chrono::milliseconds timeout, Tally& tally)
      : group_(group), tag_(tag), timeout_(timeout), tally_(&tally) {}

  void receive(void* data, std::int64_t bytes, int peer) {
    if (bytes == 0) return;
    std::vector<at::Tensor> message{tensor(data, bytes)};
    receives_.push_back(group_->recv(message, peer, tag_));
    tally_->from(peer, bytes);
  }

  void send(const void* data, std::int64_t bytes, int peer) {
    if (bytes == 0) return;
    std::vector<at::Tensor> message{tensor(const_cast<void*>(data), bytes)};
    sends_.push_back(group_->send(message, peer, tag_));
  }

  void wait_received() { wait(receives_); }
  void wait_sent() { wait(sends_); }
  void wait() {
    wait_received();
    wait_sent();
  }

 private:
  using Works = std::vector<c10::intrusive_ptr<c10d::Work>>;

  static at::Tensor tensor(void* data, std::int64_t bytes) {
    return at::from_blob(data, {bytes}, at::TensorOptions(at::kByte));
  }
  void wait(Works& works) {
    for (auto& work : works) work->wait(timeout_);
    works.clear();
  }

  Group* group_;
  int tag_;
  std::chrono::milliseconds timeout_;
  Tally* tally_;
  Works receives_;
  Works sends_;
};

class GlooCommunicator final : public CommunicatorImpl {
 public:
  GlooCommunicator(c10::intrusive_ptr<c10d::Store> store, int rank, int size, const GlooOptions& options);
  ~GlooCommunicator() override;

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  Topology topology() const override { return options_.hosts.topology(rank_); }
  std::string_view backend() const override { return "gloo"; }
  std::chrono::milliseconds time_limit() const override { return options_.timeout; }

  Pending run(const CollectiveCall& call) override;
  std::shared_ptr<CommunicatorImpl> split(int color, int key) override;

 private:
  // Takes the sources of `count` elements, by the parts of the sum, the first being element `at` of this rank's slice.
  using Sink = std::function<void(std::span<const void* const> sources, std::int64_t at, std::int64_t count)>;

  void join();
  void attempt(const Fingerprint& call, const std::function<void()>& body);
  void carry_out(const CollectiveCall& call);
  CommError failure(const std::string& call, const std::string& why) const;

  Round round();
  template <class Action>
  void for_peers(Action action) const;
  void gather(const void* own, char* values, Slices slices, std::int64_t element);
  void reduce(const char* values, Dtype dtype, Slices slices, const SumParts& sum, const Sink& sink);
  void sum_slice(const CollectiveCall& call);
  void sum_small(View values);
  void sum_large(View values);
  void move(const CollectiveCall& call);
  void meet();

  int rank_;
  int size_;
  GlooOptions options_;
  c10::intrusive_ptr<c10d::Store> store_;
  c10::intrusive_ptr<Group> group_;
  std::uint32_t mark_ = 0;  // of the call under way
  std::uint32_t round_ = 0;
  std::uint64_t sequence_ = 0;
  Tally tally_;         // of the call under way; on the worker only
  std::string broken_;  // the first failure; likewise
  Worker worker_;       // last: its tasks use the rest
};

GlooCommunicator::GlooCommunicator(c10::intrusive_ptr<c10d::Store> store, int rank, int size,
                                   const GlooOptions& options)
    : rank_(rank), size_(size), options_(options), store_(std::move(store)), tally_(options.hosts, rank) {
  if (size_ == 1) return;
  worker_.submit([this] { join(); }).wait();
}

// On the worker, like all that touches the group: see Worker for why.
void GlooCommunicator::join() {
  const QuietTorch quiet(options_.debug);
  try {
    store_->setTimeout(options_.timeout);
    group_ = make_group(store_, rank_, size_, options_);
    meet();
  } catch (const std::exception& error) {
    throw failure("joining " + std::to_string(size_) + " ranks", gist(error, options_.debug));
  }
}

GlooCommunicator::~GlooCommunicator() {
  worker_.submit([this] { group_.reset(); });
}

CommError GlooCommunicator::failure(const std::string& call, const std::string& why) const {
  const int name = options_.world_rank < 0 ? rank_ : options_.world_rank;
  return CommError("rank " + std::to_string(name) + ": " + call + " failed over gloo: " + why,
                   "a peer died, called another operation or did not arrive within " +
                       std::to_string(options_.timeout.count()) +
                       " ms; see the other ranks' errors, set ZERO_CHECK=1, or raise ZERO_TIMEOUT");
}

// After a failure the connections are closed, so that the peers fail at once instead of in time.
void GlooCommunicator::attempt(const Fingerprint& call, const std::function<void()>& body) {
  if (!broken_.empty()) throw failure(call.text(), "after an earlier failure: " + broken_);
  try {
    mark_ = mark(call);
    body();
  } catch (const std::exception& error) {
    broken_ = call.text() + ": " + gist(error, options_.debug);
    group_.reset();
    throw failure(call.text(), gist(error, options_.debug));
  }
}

Pending GlooCommunicator::run(const CollectiveCall& call) {
  require_cpu(call, *this);
  auto moved = std::make_shared<Moved>();
  Pending pending = worker_.submit([this, call, fingerprint = Fingerprint::of(++sequence_, call), moved] {
    attempt(fingerprint, [&] { carry_out(call); });
    *moved = tally_.take();
  });
  return Pending(std::make_shared<Counted>(std::move(pending), std::move(moved)));
}

void GlooCommunicator::carry_out(const CollectiveCall& call) {
  const CollectiveRule& rule = rule_of(call.collective);
  if (call.collective == Collective::barrier) return meet();
  if (!rule.sums) return move(call);
  if (rule.in == Cut::slices) return sum_slice(call);
  call.out.bytes() <= kSmallAllReduce ? sum_small(call.out) : sum_large(call.out);
}

Round GlooCommunicator::round() {
  round_ = (round_ + 1) % kRounds;
  return {group_.get(), static_cast<int>(mark_ * kRounds + round_), options_.timeout, tally_};
}

// Each rank starts with its neighbour, so that no rank is everybody's first.
template <class Action>
void GlooCommunicator::for_peers(Action action) const {
  for (int i = 1; i < size_; ++i) action((rank_ + i) % size_);
}

void GlooCommunicator::gather(const void* own, char* values, Slices slices, std::int64_t element) {
  const auto bytes = [&](int r) { return slices.extent(r) * element; };
  const auto slice = [&](int r) { return values + slices.begin(r) * element; };
  Round messages = round();
  for_peers([&](int r) { messages.receive(slice(r), bytes(r), r); });
  for_peers([&](int r) { messages.send(own, bytes(rank_), r); });
  copy(slice(rank_), own, bytes(rank_));
  messages.wait();
}

// Chunk by chunk, every rank sends each peer that peer's slice of what it brings and sums its own; one chunk ahead. A
// rank's parts, which are whole arrays one behind the other, have rounds of their own.
void GlooCommunicator::reduce(const char* values, Dtype dtype, Slices slices, const SumParts& sum, const Sink& sink) {
  if (slices.count == 0) return;
  const std::int64_t element = size_of(dtype);
  std::vector<int> brought(static_cast<std::size_t>(size_));  // by rank
  for (const SumParts::Part& part : sum.parts) ++brought[static_cast<std::size_t>(part.rank)];
  const auto [least, most] = std::ranges::minmax(brought);
  const int mine = brought[static_cast<std::size_t>(rank_)];
  // Of the rank to which most comes: chunks are the same on all.
  const std::int64_t theirs = std::max<std::int64_t>(std::ssize(sum.parts) - least, 1);
  const std::int64_t chunk = std::min(slices.length(), std::max(kLeastChunk, kStaging / 2 / theirs / element));
  const auto staging = std::make_unique_for_overwrite<char[]>(static_cast<std::size_t>(2 * theirs * chunk * element));
  const auto extent = [&](int r, std::int64_t at) { return std::clamp<std::int64_t>(slices.extent(r) - at, 0, chunk); };
  const auto at_slice = [&](int number, int r, std::int64_t at) {
    return values + (number * slices.count + slices.begin(r) + at) * element;
  };
  // Where the peers' parts of a chunk come to, one behind the other.
  const auto each_part = [&](std::int64_t at, const auto& use) {
    char* place = staging.get() + at / chunk % 2 * theirs * chunk * element;
    for (const SumParts::Part& part : sum.parts) {
      use(part, place);
      if (part.rank != rank_) place += chunk * element;
    }
  };
  const auto start = [&](std::int64_t at) {
    std::vector<Round> messages;
    for (int number = 0; number < most; ++number) messages.push_back(round());
    each_part(at, [&](const SumParts::Part& part, char* place) {
      if (part.rank == rank_) return;
      messages[static_cast<std::size_t>(part.number)].receive(place, extent(rank_, at) * element, part.rank);
    });
    for (int number = 0; number < mine; ++number)
      for_peers([&](int r) {
        messages[static_cast<std::size_t>(number)].send(at_slice(number, r, at), extent(r, at) * element, r);
      });
    return messages;
  };
  std::vector<Round> next = start(0);
  for (std::int64_t at = 0; at < slices.length(); at += chunk) {
    std::vector<Round> current = std::exchange(next, {});
    if (at + chunk < slices.length()) next = start(at + chunk);
    for (Round& each : current) each.wait_received();
    std::vector<const void*> sources;
    each_part(at, [&](const SumParts::Part& part, const char* place) {
      sources.push_back(part.rank == rank_ ? at_slice(part.number, rank_, at) : place);
    });
    sink(sources, at, extent(rank_, at));
    for (Round& each : current) each.wait_sent();
  }
}

void GlooCommunicator::sum_slice(const CollectiveCall& call) {
  const GroupSum group(call.leaves, size_);
  const SumParts sum(group);
  const std::int64_t whole = call.in.count / group.most();
  reduce(bytes_of(call.in.data), call.in.dtype, {whole, size_}, sum,
         [&](std::span<const void* const> sources, std::int64_t at, std::int64_t count) {
           char* const to = bytes_of(call.out.data) + at * size_of(call.out.dtype);
           group_sum(sum, sources, call.in.dtype, to, whole / size_, count);
         });
}

void GlooCommunicator::sum_small(View values) {
  const auto bytes = values.bytes();
  const auto peers = std::make_unique_for_overwrite<char[]>(static_cast<std::size_t>(size_ * bytes));
  gather(values.data, peers.get(), {values.count * size_, size_}, size_of(values.dtype));
  std::vector<const void*> sources;
  for (int r = 0; r < size_; ++r) sources.push_back(peers.get() + r * bytes);
  tree_sum_rounded(sources, values.dtype, values.data, values.count);
}

void GlooCommunicator::sum_large(View values) {
  const Slices slices{values.count, size_};
  const auto element = size_of(values.dtype);
  char* const own = bytes_of(values.data) + slices.begin(rank_) * element;
  reduce(bytes_of(values.data), values.dtype, slices, SumParts(GroupSum({}, size_)),
         [&](std::span<const void* const> sources, std::int64_t at, std::int64_t count) {
           tree_sum_rounded(sources, values.dtype, own + at * element, count);
         });
  gather(own, bytes_of(values.data), slices, element);
}

void GlooCommunicator::move(const CollectiveCall& call) {
  const CollectiveRule& rule = rule_of(call.collective);
  const std::int64_t bytes = call.in.bytes() / slices_of_input(call, size_);
  const auto taken = [&](const Take& take) { return bytes_of(call.in.data) + take.slice * bytes; };
  const auto place = [&](const Take& take) { return bytes_of(call.out.data) + take.place * bytes; };
  Round messages = round();
  for_peers([&](int r) {
    if (const Take take = rule.take(rank_, r, call.root)) messages.receive(place(take), bytes, r);
  });
  for_peers([&](int r) {
    if (const Take take = rule.take(r, rank_, call.root)) messages.send(taken(take), bytes, r);
  });
  if (const Take own = rule.take(rank_, rank_, call.root)) copy(place(own), taken(own), bytes);
  messages.wait();
  if (call.root == rank_ && size_ > 1) tally_.broadcast(bytes);
}

void GlooCommunicator::meet() {
  const char token = 1;
  std::vector<char> tokens(static_cast<std::size_t>(size_));
  gather(&token, tokens.data(), {size_, size_}, 1);
  tally_.take();  // tokens are nobody's bytes
}

std::shared_ptr<CommunicatorImpl> GlooCommunicator::split(int color, int key) {
  const auto call = Fingerprint::split(++sequence_);
  std::vector<SplitCall> calls(static_cast<std::size_t>(size_));
  const SplitCall own{color, key};
  worker_
      .submit([&] {
        attempt(call, [&] {
          gather(&own, bytes_of(static_cast<void*>(calls.data())), {size_, size_}, sizeof(SplitCall));
        });
        tally_.take();
      })
      .wait();
  const auto members = split_group(calls, rank_);
  const auto self = std::find(members.begin(), members.end(), rank_) - members.begin();
  GlooOptions options = options_;
  options.hosts = options_.hosts.of(members);
  const std::string prefix = "split/" + std::to_string(call.sequence) + "/" + std::to_string(color);
  return gloo_communicator(c10::make_intrusive<c10d::PrefixStore>(prefix, store_), static_cast<int>(self),
                           static_cast<int>(members.size()), options);
}

}  // namespace

std::shared_ptr<CommunicatorImpl> gloo_communicator(c10::intrusive_ptr<c10d::Store> store, int rank, int size,
                                                    const GlooOptions& options) {
  return std::make_shared<GlooCommunicator>(std::move(store), rank, size, options);
}

}  // namespace zero
