// The library's own transport: frames, streams and what goes wrong with them.
#include <fcntl.h>
#include <sys/socket.h>

#include <cstring>
#include <future>

#include "comm/net/outbox.h"
#include "network_group.h"

namespace zero::test::network_test {

using Groups = std::vector<std::shared_ptr<CommunicatorImpl>>;

// Sockets of a system that does less at a time than it might, or breaks.
class Breaking final : public Sockets {
 public:
  std::size_t most = std::size_t(-1);  // bytes at a time
  std::atomic<int> calls{1 << 30};     // until both directions fail
  std::atomic<bool> stalled{false};    // takes nothing, and has nothing

  std::ptrdiff_t send(int socket, std::span<const iovec> parts) override {
    return each(parts, [&](std::span<const iovec> some) { return Sockets::send(socket, some); });
  }
  std::ptrdiff_t receive(int socket, std::span<const iovec> parts) override {
    return each(parts, [&](std::span<const iovec> some) { return Sockets::receive(socket, some); });
  }

 private:
  template <class Call>
  std::ptrdiff_t each(std::span<const iovec> parts, const Call& call) {
    if (stalled) {
      std::this_thread::yield();
      errno = EAGAIN;
      return -1;
    }
    if (calls.fetch_sub(1) <= 0) {
      errno = ECONNRESET;
      return -1;
    }
    iovec first = parts[0];
    if (first.iov_len == 0 && parts.size() > 1) first = parts[1];
    if (most == std::size_t(-1)) return call(parts);
    first.iov_len = std::min(first.iov_len, most);
    return call(std::span<const iovec>(&first, 1));
  }
};

// Ranks as threads, the first of them by these sockets.
class Ranks {
 public:
  Ranks(int size, Sockets& first, Timeout limit = kNoHang) {
    std::vector<int> members;
    for (int rank = 0; rank < size; ++rank) members.push_back(rank);
    for (auto& ends : stream_ends(size)) {
      const int rank = static_cast<int>(std::ssize(groups_));
      auto links = std::make_shared<Links>(std::move(ends), rank == 0 ? first : Sockets::of_system());
      groups_.push_back(network_communicator(links, "all", members, rank, {.timeout = limit}));
    }
  }

  // What each of them threw.
  std::vector<std::string> errors(const std::function<void(const Communicator&)>& body) {
    std::vector<std::string> texts(groups_.size());
    std::vector<std::thread> threads;
    for (std::size_t rank = 0; rank < groups_.size(); ++rank)
      threads.emplace_back([&, rank] {
        try {
          body(Communicator(groups_[rank]));
        } catch (const Error& error) {
          texts[rank] = error.what();
        }
      });
    for (auto& thread : threads) thread.join();
    return texts;
  }

 private:
  Groups groups_;
};

// What it is given to send, so many bytes at a time.
class Written final : public Sockets {
 public:
  std::ptrdiff_t send(int, std::span<const iovec> parts) override {
    if (left == 0) {
      errno = EAGAIN;
      return -1;
    }
    std::size_t sent = 0;
    for (const iovec& part : parts) {
      const std::size_t bytes = std::min(part.iov_len, left);
      text.append(static_cast<const char*>(part.iov_base), bytes);
      left -= bytes;
      sent += bytes;
    }
    return static_cast<std::ptrdiff_t>(sent);
  }

  std::size_t left = 0;
  std::string text;
};

// Whose parts they are, one after the other.
std::vector<std::uint64_t> senders(std::string_view text) {
  std::vector<std::uint64_t> channels;
  for (FrameHeader header; text.size() >= sizeof header; text.remove_prefix(sizeof header + header.length)) {
    std::memcpy(&header, text.data(), sizeof header);
    channels.push_back(header.key.channel);
  }
  return channels;
}

// What goes first and what is short wait for the part that is being written, and for no other.
TEST(NetworkLinks, SendFirstWhatGoesFirst) {
  constexpr std::int64_t kParts = 4;
  std::vector<char> values(kParts * kLongestPart);
  MessageBatch batch;
  const std::string peer = "rank 1";
  const auto message = [&](std::uint64_t channel, std::int64_t bytes, bool first) {
    ++batch.left_in(Direction::out);
    Message made{.key = {channel}, .data = values.data(), .bytes = bytes, .direction = Direction::out, .first = first};
    made.batch = &batch;
    made.peer = &peer;
    return made;
  };
  Message usual = message(1, kParts * kLongestPart, false), urgent = message(2, 2 * kLongestPart, true),
          later = message(3, kLongestPart, false), word = message(4, 8, false);
  Outbox outbox;
  const auto ready = [&](const Message& each) {
    EXPECT_EQ(outbox.ready({.kind = FrameKind::ready, .key = each.key, .at = each.bytes}), "");
  };
  Written socket;
  for (Message* each : {&usual, &later, &urgent}) outbox.add(*each);
  ready(usual);
  ready(later);
  socket.left = kLongestPart;
  EXPECT_FALSE(outbox.write(socket, 0));
  ready(urgent);
  outbox.add(word);
  socket.left = std::size_t(-1);
  EXPECT_TRUE(outbox.write(socket, 0));
  EXPECT_EQ(senders(socket.text), (std::vector<std::uint64_t>{1, 4, 2, 2, 1, 1, 1, 3}));
}

TEST(NetworkLinks, TakeWhatStreamsTakeAtATime) {
  for (const std::size_t most : {1, 7, 4096})
    for (const std::int64_t count : {10, 5'000}) {
      Breaking sockets;
      sockets.most = most;
      Ranks ranks(3, sockets);
      for (const std::string& text : ranks.errors([&](const Communicator& c) { exchange(c, count); }))
        EXPECT_EQ(text, "") << most;
    }
}

// Wherever the connection breaks, a rank that has not all yet has an error in which it knows of whom, and none waits.
TEST(NetworkLinks, FailOnBothRanksWhereverAStreamBreaks) {
  int broken = 0, both = 0;
  for (int calls = 0; calls < 200; calls += 3) {
    Breaking sockets;
    sockets.calls = calls;
    Ranks ranks(2, sockets);
    const auto texts = ranks.errors([&](const Communicator& c) { exchange(c, 70'000); });
    if (texts[0].empty() && texts[1].empty()) continue;
    ++broken;
    EXPECT_NE(texts[0].find("failed over tcp: rank 1"), texts[0].npos) << calls << ": " << texts[0];
    if (texts[1].empty()) continue;  // it had all
    ++both;
    EXPECT_NE(texts[1].find("failed over tcp: rank 0"), texts[1].npos) << calls << ": " << texts[1];
  }
  EXPECT_GT(broken, 5);
  EXPECT_GT(both, 5);
}

TEST(NetworkLinks, NameAPeerThatStalls) {
  Breaking sockets;
  sockets.stalled = true;
  Ranks ranks(2, sockets, Timeout(50));
  const auto texts = ranks.errors([&](const Communicator& c) { exchange(c, 10); });
  sockets.calls = 0;  // so that it ends
  sockets.stalled = false;
  for (int rank = 0; rank < 2; ++rank) {
    const std::string wanted = "rank " + std::to_string(1 - rank) + " did not answer within 50 ms";
    EXPECT_NE(texts[static_cast<std::size_t>(rank)].find(wanted), std::string::npos)
        << texts[static_cast<std::size_t>(rank)];
  }
}

TEST(NetworkLinks, TellWhoCalledSomethingElse) {
  for (const std::int64_t count : {std::int64_t{10}, std::int64_t{100'000}}) {
    Breaking sockets;
    Ranks ranks(2, sockets);
    const auto texts = ranks.errors([&](const Communicator& c) {
      Array mine(Dtype::f32, count + c.rank()), whole(Dtype::f32, 2 * (count + c.rank()));
      c.all_gather(mine.view(), whole.view()).wait();
    });
    for (const std::string& text : texts)
      EXPECT_TRUE(text.find("called something else") != text.npos || text.find("failed there") != text.npos) << text;
    EXPECT_NE((texts[0] + texts[1]).find("called something else"), std::string::npos);
  }
}

// What a peer failed with is told to who waits for it, at once.
TEST(NetworkLinks, TellWhyAPeerFailed) {
  Breaking sockets;
  Ranks ranks(3, sockets);
  const auto texts = ranks.errors([&](const Communicator& c) {
    Array values(Dtype::f32, c.rank() == 2 ? 3 : 4);
    c.all_reduce(values.view()).wait();
  });
  for (const std::string& text : texts) EXPECT_NE(text, "");
  // And so is every later call.
  for (const std::string& text : ranks.errors([](const Communicator& c) { c.barrier().wait(); })) EXPECT_NE(text, "");
}

// Of two groups over one stream, the failure of one leaves the other.
TEST(NetworkLinks, KeepGroupsApart) {
  const auto links = linked_threads(2);
  const MakeRank left = network_of(links, "left", 0, 1, 2, {.timeout = kNoHang});
  const MakeRank right = network_of(links, "right", 0, 1, 2, {.timeout = kNoHang});
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank)
    threads.emplace_back([&, rank] {
      const Communicator a(left(rank)), b(right(rank));
      exchange(a, 1'000);
      Array values(Dtype::f32, rank + 1);
      EXPECT_THROW(a.all_reduce(values.view()).wait(), CommError);
      exchange(b, 10'000);
    });
  for (auto& thread : threads) thread.join();
}

// A rank that dies in the middle of a group's call takes no stream between others with it.
TEST(NetworkLinks, KeepWhatASurvivorOfAnotherGroupHas) {
  for (int round = 0; round < 10; ++round) {
    const auto links = linked_threads(3);
    const MakeRank all = network_of(links, "all", 0, 1, 3, {.timeout = kNoHang});
    const MakeRank pair = network_of(links, "pair", 0, 1, 2, {.timeout = kNoHang});
    std::vector<std::thread> threads;
    for (int rank = 0; rank < 2; ++rank)
      threads.emplace_back([&, rank] {
        const Communicator three(all(rank)), two(pair(rank));
        Array mine(Dtype::f32, 500'000), whole(Dtype::f32, 1'500'000);
        EXPECT_THROW(three.all_gather(mine.view(), whole.view()).wait(), CommError);
        exchange(two, 70'000);
      });
    links->back().reset();
    for (auto& thread : threads) thread.join();
  }
}

// Who ends a group while others go on over the same streams is not waited for.
TEST(NetworkLinks, TellThatARankHasLeftAGroup) {
  const auto links = linked_threads(2);
  const MakeRank left = network_of(links, "left", 0, 1, 2, {.timeout = kNoHang});
  const MakeRank right = network_of(links, "right", 0, 1, 2, {.timeout = kNoHang});
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank)
    threads.emplace_back([&, rank] {
      const Communicator stays(right(rank));
      {
        const Communicator ends(left(rank));
        exchange(ends, 1'000);
        if (rank == 1) {
          std::string text;
          try {
            ends.barrier().wait();
          } catch (const CommError& error) {
            text = error.what();
          }
          EXPECT_NE(text.find("rank 0 left the group"), text.npos) << text;
        }
      }
      exchange(stays, 10'000);
    });
  for (auto& thread : threads) thread.join();
}

// One end of a stream in the test's hands, the other a rank's that waits for a message.
class Stranger {
 public:
  Stranger() {
    auto ends = stream_ends(2);
    stream_ = std::move(ends[1][0].stream);
    auto links = std::make_shared<Links>(std::move(ends[0]));
    group_ = network_communicator(links, "all", {0, 1}, 0, {.timeout = kNoHang});
    thread_ = std::async(std::launch::async, [this] {
      try {
        Array values(Dtype::f32, 10'000), all(Dtype::f32, 20'000);
        group_->run({Collective::all_gather, values.view(), all.view()}).wait();
      } catch (const Error& error) {
        return std::string(error.what());
      }
      return std::string();
    });
  }
  // The frame by which it asks for what it waits for.
  FrameHeader asked() {
    FrameHeader header;
    char* const to = reinterpret_cast<char*>(&header);
    for (std::size_t got = 0; got < sizeof header;) {
      const auto count = recv(blocking(), to + got, sizeof header - got, 0);
      if (count <= 0) throw std::runtime_error("it asked for nothing");
      got += static_cast<std::size_t>(count);
    }
    return header;
  }
  // Which it may have closed its end upon.
  void say(const FrameHeader& header, const std::string& words) {
    const std::string bytes = std::string(reinterpret_cast<const char*>(&header), sizeof header) + words;
    static_cast<void>(send(blocking(), bytes.data(), bytes.size(), MSG_NOSIGNAL));
  }
  std::string error() { return thread_.get(); }

 private:
  int blocking() {
    fcntl(stream_.get(), F_SETFL, 0);
    return stream_.get();
  }

  Descriptor stream_;
  std::shared_ptr<CommunicatorImpl> group_;
  std::future<std::string> thread_;
};

// What is wrong with what comes, which is the frame that it asks by, changed, and words behind it, so often.
struct Nonsense {
  const char* told;
  void (*change)(FrameHeader& frame);
  std::string words = {};
  int times = 1;
};

void part_of_8(FrameHeader& frame) {
  frame.kind = FrameKind::part;
  frame.at = 0, frame.length = 8;
}

const Nonsense kNonsense[] = {
    {"sent what is no frame", [](FrameHeader& f) { f.magic = 0x78787878; }},
    {"sent a frame of a kind that there is not", [](FrameHeader& f) { f.kind = static_cast<FrameKind>(9); }},
    {"sent a frame that is too long", [](FrameHeader& f) { part_of_8(f), f.length = 1u << 30; }},
    {"sent parts of a message in disorder", [](FrameHeader& f) { part_of_8(f), f.at = 8; }, "12345678"},
    {"sent parts of a message in disorder", part_of_8, "12345678", 2},
    {"sent a part of what this rank did not ask for", [](FrameHeader& f) { part_of_8(f), f.key.call += 1; },
     "12345678"},
    {"sent a message twice", [](FrameHeader& f) { part_of_8(f), f.kind = FrameKind::whole, f.key.call += 1; },
     "12345678", 2},
    {"asked twice for one message", [](FrameHeader& f) { f.key.call += 1; }, "", 2},
    {"called something else", [](FrameHeader& f) { f.mark += 1; }},
    {"failed there: no gas", [](FrameHeader& f) { f.kind = FrameKind::failed, f.at = 0, f.length = 20; },
     "failed there: no gas"},
    {"waits for a rank that there is not", [](FrameHeader& f) { f = {.kind = FrameKind::waits, .at = 2}; }},
    {"waits for a rank that there is not", [](FrameHeader& f) { f = {.kind = FrameKind::waits, .at = -2}; }},
    {"left the group", [](FrameHeader& f) { f = {.kind = FrameKind::left}; }},
};

// Each is found by the rank that it comes to.
TEST(NetworkLinks, AreNotReadAnyMoreWhereTheyMakeNoSense) {
  for (const Nonsense& each : kNonsense) {
    Stranger stranger;
    FrameHeader frame = stranger.asked();
    EXPECT_EQ(frame.kind, FrameKind::ready);
    EXPECT_EQ(frame.at, 40'000);
    each.change(frame);
    for (int i = 0; i < each.times; ++i) stranger.say(frame, each.words);
    const std::string text = stranger.error();
    EXPECT_NE(text.find(std::string("rank 1 ") + each.told), text.npos) << text;
  }
}

}  // namespace zero::test::network_test
