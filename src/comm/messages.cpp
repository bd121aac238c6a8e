#include "comm/messages.h"

#include <algorithm>
#include <utility>

#include "base/collective_rules.h"
#include "comm/tree_sum.h"
#include "zero/error.h"

namespace zero {
namespace {

constexpr std::int64_t kStaging = 1 << 20;  // bytes for the peers' chunks of a sum, two rounds of them
constexpr std::int64_t kLeastChunk = 64;    // elements
// An all_reduce of at most this many bytes is an exchange of everything and one local sum, a larger one a
// reduce_scatter and an all_gather.
constexpr std::int64_t kSmallAllReduce = 64 * 1024;

}  // namespace

// What came of an operation, once it is over. Its failure is thrown anew by who waits, so that no two threads have one
// exception.
struct MessageCommunicator::Outcome {
  Moved moved;
  std::string failure, hint;  // empty: none
  void require() const {
    if (!failure.empty()) throw CommError(failure, hint);
  }
};

// An operation on the worker.
class MessageCommunicator::UnderWay final : public Pending::State {
 public:
  UnderWay(Pending operation, std::shared_ptr<const Outcome> outcome)
      : operation_(std::move(operation)), outcome_(std::move(outcome)) {}

  void wait() override {
    operation_.wait();
    outcome_->require();
  }
  bool done() override { return operation_.done(); }
  Moved moved() const override { return outcome_->moved; }

 private:
  Pending operation_;
  std::shared_ptr<const Outcome> outcome_;
};

// Messages without bytes are none; those that come are counted.
class MessageCommunicator::Round {
 public:
  Round(std::unique_ptr<MessageRound> messages, Tally& tally) : messages_(std::move(messages)), tally_(&tally) {}

  void receive(void* data, std::int64_t bytes, int peer) {
    if (bytes == 0) return;
    messages_->receive(data, bytes, peer);
    tally_->from(peer, bytes);
  }
  void send(const void* data, std::int64_t bytes, int peer) {
    if (bytes > 0) messages_->send(data, bytes, peer);
  }
  void wait_received() { messages_->wait_received(); }
  void wait_sent() { messages_->wait_sent(); }
  void wait() {
    wait_received();
    wait_sent();
  }

 private:
  std::unique_ptr<MessageRound> messages_;
  Tally* tally_;
};

MessageCommunicator::MessageCommunicator(int rank, int size, MessageOptions options)
    : rank_(rank),
      size_(size),
      options_(std::move(options)),
      tally_(options_.hosts, rank),
      worker_(std::make_unique<Worker>()) {}

MessageCommunicator::Outcome MessageCommunicator::failed(const std::string& call, const std::string& why) const {
  const int name = options_.world_rank < 0 ? rank_ : options_.world_rank;
  return {{},
          "rank " + std::to_string(name) + ": " + call + " failed over " + std::string(backend()) + ": " + why,
          "a peer died, called another operation or did not arrive within " + std::to_string(options_.timeout.count()) +
              " ms; see the other ranks' errors, set ZERO_CHECK=1, or raise ZERO_TIMEOUT"};
}

void MessageCommunicator::join(const std::function<void()>& body) {
  Outcome outcome;
  worker_
      ->submit([&] {
        try {
          body();
        } catch (const std::exception& error) {
          outcome = failed("joining " + std::to_string(size_) + " ranks", words_of(error));
        }
      })
      .wait();
  outcome.require();
}

bool MessageCommunicator::leave(std::function<void()> body) {
  if (origin_.here()) worker_->submit(std::move(body));
  worker_.reset();
  return origin_.here();
}

MessageCommunicator::Outcome MessageCommunicator::attempt(const Fingerprint& call, const std::function<void()>& body) {
  if (!broken_.empty()) return failed(call.text(), "after an earlier failure: " + broken_);
  try {
    call_ = call;
    round_ = 0;
    body();
    return {tally_.take(), {}, {}};
  } catch (const std::exception& error) {
    const std::string why = words_of(error);
    broken_ = call.text() + ": " + why;
    close(call, broken_);
    return failed(call.text(), why);
  }
}

Pending MessageCommunicator::run(const CollectiveCall& call) {
  require_cpu(call, *this);
  auto outcome = std::make_shared<Outcome>();
  Pending pending = worker_->submit([this, call, fingerprint = Fingerprint::of(++sequence_, call), outcome] {
    *outcome = attempt(fingerprint, [&] { carry_out(call); });
  });
  return Pending(std::make_shared<UnderWay>(std::move(pending), std::move(outcome)));
}

void MessageCommunicator::carry_out(const CollectiveCall& call) {
  const CollectiveRule& rule = rule_of(call.collective);
  if (call.collective == Collective::barrier) return await_peers();
  if (!rule.sums) return move(call);
  if (rule.in == Cut::slices) return sum_slice(call);
  call.out.bytes() <= kSmallAllReduce ? sum_small(call.out) : sum_large(call.out);
}

MessageCommunicator::Round MessageCommunicator::next_round() {
  return {round(call_, ++round_), tally_};
}

// Each rank starts with its neighbour, so that no rank is everybody's first.
template <class Action>
void MessageCommunicator::for_peers(Action action) const {
  for (int i = 1; i < size_; ++i) action((rank_ + i) % size_);
}

void MessageCommunicator::gather(const void* own, char* values, Slices slices, std::int64_t element) {
  const auto bytes = [&](int r) { return slices.extent(r) * element; };
  const auto slice = [&](int r) { return values + slices.begin(r) * element; };
  Round messages = next_round();
  for_peers([&](int r) { messages.receive(slice(r), bytes(r), r); });
  for_peers([&](int r) { messages.send(own, bytes(rank_), r); });
  copy(slice(rank_), own, bytes(rank_));
  messages.wait();
}

// Chunk by chunk, every rank sends each peer that peer's slice of what it brings and sums its own; one chunk ahead. A
// rank's parts, which are whole arrays one behind the other, have rounds of their own.
void MessageCommunicator::reduce(const char* values, Dtype dtype, Slices slices, const SumParts& sum,
                                 const Sink& sink) {
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
    for (int number = 0; number < most; ++number) messages.push_back(next_round());
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

void MessageCommunicator::sum_slice(const CollectiveCall& call) {
  const GroupSum group(call.leaves, size_);
  const SumParts sum(group);
  const std::int64_t whole = call.in.count / group.most();
  reduce(bytes_of(call.in.data), call.in.dtype, {whole, size_}, sum,
         [&](std::span<const void* const> sources, std::int64_t at, std::int64_t count) {
           char* const to = bytes_of(call.out.data) + at * size_of(call.out.dtype);
           group_sum(sum, sources, call.in.dtype, to, whole / size_, count);
         });
}

void MessageCommunicator::sum_small(View values) {
  const auto bytes = values.bytes();
  const auto peers = std::make_unique_for_overwrite<char[]>(static_cast<std::size_t>(size_ * bytes));
  gather(values.data, peers.get(), {values.count * size_, size_}, size_of(values.dtype));
  std::vector<const void*> sources;
  for (int r = 0; r < size_; ++r) sources.push_back(peers.get() + r * bytes);
  tree_sum_rounded(sources, values.dtype, values.data, values.count);
}

void MessageCommunicator::sum_large(View values) {
  const Slices slices{values.count, size_};
  const auto element = size_of(values.dtype);
  char* const own = bytes_of(values.data) + slices.begin(rank_) * element;
  reduce(bytes_of(values.data), values.dtype, slices, SumParts(GroupSum({}, size_)),
         [&](std::span<const void* const> sources, std::int64_t at, std::int64_t count) {
           tree_sum_rounded(sources, values.dtype, own + at * element, count);
         });
  gather(own, bytes_of(values.data), slices, element);
}

void MessageCommunicator::move(const CollectiveCall& call) {
  const CollectiveRule& rule = rule_of(call.collective);
  const std::int64_t bytes = call.in.bytes() / slices_of_input(call, size_);
  const auto taken = [&](const Take& take) { return bytes_of(call.in.data) + take.slice * bytes; };
  const auto place = [&](const Take& take) { return bytes_of(call.out.data) + take.place * bytes; };
  Round messages = next_round();
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

void MessageCommunicator::await_peers() {
  const char token = 1;
  std::vector<char> tokens(static_cast<std::size_t>(size_));
  gather(&token, tokens.data(), {size_, size_}, 1);
  tally_.take();  // tokens are nobody's bytes
}

MessageCommunicator::Split MessageCommunicator::split_members(int color, int key) {
  Split split;
  split.sequence = ++sequence_;
  std::vector<SplitCall> calls(static_cast<std::size_t>(size_));
  const SplitCall own{color, key};
  Outcome outcome;
  worker_
      ->submit([&] {
        outcome = attempt(Fingerprint::split(split.sequence), [&] {
          gather(&own, bytes_of(static_cast<void*>(calls.data())), {size_, size_}, sizeof(SplitCall));
        });
      })
      .wait();
  outcome.require();
  split.members = split_group(calls, rank_);
  split.self = static_cast<int>(std::ranges::find(split.members, rank_) - split.members.begin());
  split.options = options_;
  split.options.hosts = options_.hosts.of(split.members);
  return split;
}

}  // namespace zero
