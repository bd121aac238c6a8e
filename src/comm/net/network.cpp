#include "comm/net/network.h"

#include <deque>
#include <span>
#include <utility>

#include "base/random.h"

namespace zero {
namespace {

// A group's members, and where it finds them.
struct Membership {
  std::shared_ptr<Links> links;
  std::uint64_t channel;
  std::vector<int> members;  // by their numbers in the group
  bool first = false;        // what it sends goes before what others do
};

class NetworkRound final : public MessageRound {
 public:
  NetworkRound(const Membership& group, MessageKey key, std::uint32_t mark, std::chrono::milliseconds limit)
      : group_(group), key_(key), mark_(mark), limit_(limit) {}
  ~NetworkRound() override {
    for (std::size_t i = 0; i < messages_.size(); ++i) group_.links->drop(messages_[i], ranks_[i]);
  }
  NetworkRound(const NetworkRound&) = delete;
  NetworkRound& operator=(const NetworkRound&) = delete;

  void receive(void* data, std::int64_t bytes, int peer) override { begin(Direction::in, bytes_of(data), bytes, peer); }
  void send(const void* data, std::int64_t bytes, int peer) override {
    begin(Direction::out, const_cast<char*>(bytes_of(data)), bytes, peer);
  }
  void wait_received() override { group_.links->wait(batch_, Direction::in, limit_); }
  void wait_sent() override { group_.links->wait(batch_, Direction::out, limit_); }

 private:
  void begin(Direction direction, char* data, std::int64_t bytes, int peer) {
    ranks_.push_back(group_.members[static_cast<std::size_t>(peer)]);
    Message& message = messages_.emplace_back();
    message.key = key_;
    message.mark = mark_;
    message.data = data;
    message.bytes = bytes;
    message.direction = direction;
    message.first = group_.first;
    message.batch = &batch_;
    group_.links->begin(message, ranks_.back());
  }

  const Membership& group_;
  MessageKey key_;
  std::uint32_t mark_;
  std::chrono::milliseconds limit_;
  MessageBatch batch_;
  std::deque<Message> messages_;
  std::vector<int> ranks_;  // of the links, by message
};

class NetworkCommunicator final : public MessageCommunicator {
 public:
  NetworkCommunicator(Membership group, int rank, const MessageOptions& options)
      : MessageCommunicator(rank, static_cast<int>(group.members.size()), options), group_(std::move(group)) {}
  ~NetworkCommunicator() override {
    if (!leave()) return;
    group_.links->fail(key_of(calls() + 1), group_.members, "left the group");
    group_.links->end(group_.channel);
  }

  std::string_view backend() const override { return "tcp"; }
  std::shared_ptr<CommunicatorImpl> split(int color, int key) override;
  void go_first() override { group_.first = true; }
  void give_up(const std::string& why) override {
    group_.links->fail(key_of(calls() + 1), group_.members, "failed there: " + why);
  }

 private:
  std::unique_ptr<MessageRound> round(const Fingerprint& call, std::uint32_t number) override {
    const std::string_view bytes(reinterpret_cast<const char*>(&call), sizeof call);
    const auto mark = static_cast<std::uint32_t>(fnv1a(bytes) >> 32);
    return std::make_unique<NetworkRound>(group_, key_of(call.sequence, number), mark, options().timeout);
  }
  void close(const Fingerprint& call, const std::string& why) override {
    group_.links->fail(key_of(call.sequence), group_.members, "failed there: " + why);
  }
  MessageKey key_of(std::uint64_t call, std::uint32_t round = 0) const {
    return {group_.channel, static_cast<std::uint32_t>(call), round};
  }

  Membership group_;
};

std::shared_ptr<CommunicatorImpl> NetworkCommunicator::split(int color, int key) {
  Split group = split_members(color, key);
  std::vector<int> members;
  for (const int each : group.members) members.push_back(group_.members[static_cast<std::size_t>(each)]);
  const std::string name =
      std::to_string(group_.channel) + "/" + std::to_string(group.sequence) + "/" + std::to_string(color);
  return network_communicator(group_.links, name, std::move(members), group.self, group.options);
}

}  // namespace

std::shared_ptr<CommunicatorImpl> network_communicator(std::shared_ptr<Links> links, const std::string& name,
                                                       std::vector<int> members, int rank,
                                                       const MessageOptions& options) {
  return std::make_shared<NetworkCommunicator>(Membership{std::move(links), fnv1a(name), std::move(members)}, rank,
                                               options);
}

}  // namespace zero
