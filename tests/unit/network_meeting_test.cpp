// How ranks meet over the network: the handshake, who is turned away, and who comes again.
#include "comm/net/network_meeting.h"

#include <fcntl.h>
#include <sys/socket.h>

#include <deque>
#include <functional>
#include <future>
#include <thread>

#include "base/system_random.h"
#include "network_group.h"

namespace zero::test::network_meeting_test {

using Groups = std::vector<std::shared_ptr<CommunicatorImpl>>;

// The vectors of the paper's reference code: key 00 01 .. 0f, and the bytes 00 01 .. of this length.
TEST(SipHash, IsThatOfThePaper) {
  Secret key;
  for (std::size_t i = 0; i < key.size(); ++i) key[i] = static_cast<std::uint8_t>(i);
  const auto of = [&](std::size_t length) {
    std::vector<std::uint8_t> bytes(length);
    for (std::size_t i = 0; i < length; ++i) bytes[i] = static_cast<std::uint8_t>(i);
    return sealed(key, bytes);
  };
  EXPECT_EQ(of(0),
            (Seal{0xa3, 0x81, 0x7f, 0x04, 0xba, 0x25, 0xa8, 0xe6, 0x6d, 0xf6, 0x72, 0x14, 0xc7, 0x55, 0x02, 0x93}));
  EXPECT_EQ(of(1),
            (Seal{0xda, 0x87, 0xc1, 0xd8, 0x6b, 0x99, 0xaf, 0x44, 0x34, 0x76, 0x59, 0x11, 0x9b, 0x22, 0xfc, 0x45}));
  EXPECT_EQ(of(8),
            (Seal{0x3b, 0x62, 0xa9, 0xba, 0x62, 0x58, 0xf5, 0x61, 0x0f, 0x83, 0xe2, 0x64, 0xf3, 0x14, 0x97, 0xb4}));
}

// Ranks that meet over the system's loopback, each a thread; what each got, or threw.
struct Met {
  std::vector<LinkedRank> ranks;
  std::string error;
};

class Meeting {
 public:
  explicit Meeting(int size, Timeout limit = kNoHang) : limit_(limit) {
    for (int rank = 0; rank < size; ++rank) own_.push_back({rank, size, secret_});
  }
  NetworkIdentity& own(int rank) { return own_[static_cast<std::size_t>(rank)]; }

  // `meanwhile` is called with where each listens, before any connects.
  std::vector<Met> meet(const std::function<void(const std::vector<std::string>& places)>& meanwhile = {}) {
    std::vector<NetworkMeeting> meetings;
    std::vector<std::string> places;
    for (const NetworkIdentity& own : own_) places.push_back(meetings.emplace_back(kLoopback, own, limit_).place());
    if (meanwhile) meanwhile(places);
    std::vector<Met> met(own_.size());
    std::vector<std::thread> threads;
    for (std::size_t rank = 0; rank < own_.size(); ++rank)
      threads.emplace_back([&, rank] {
        try {
          met[rank].ranks = meetings[rank].join(places);
        } catch (const Error& error) {
          met[rank].error = error.what();
          NetworkMeeting ended = std::move(meetings[rank]);
        }
      });
    for (auto& thread : threads) thread.join();
    return met;
  }

 private:
  Secret secret_ = random_bytes();
  Timeout limit_;
  std::vector<NetworkIdentity> own_;
};

void expect_joined(std::vector<Met> met) {
  Groups groups;
  std::vector<int> members;
  for (std::size_t rank = 0; rank < met.size(); ++rank) members.push_back(static_cast<int>(rank));
  for (std::size_t rank = 0; rank < met.size(); ++rank) {
    ASSERT_EQ(met[rank].error, "");
    groups.push_back(network_communicator(std::make_shared<Links>(std::move(met[rank].ranks)), "all", members,
                                          static_cast<int>(rank), {.timeout = kNoHang}));
  }
  std::vector<std::thread> threads;
  for (const auto& group : groups) threads.emplace_back([&] { exchange(Communicator(group), 70'000); });
  for (auto& thread : threads) thread.join();
}

Descriptor connected_to(const std::string& place) {
  return connect_to(kLoopback, std::stoi(place), std::chrono::steady_clock::now() + kNoHang);
}

TEST(NetworkMeeting, JoinsEveryRankWithEveryOther) {
  for (const int size : {1, 2, 5}) expect_joined(Meeting(size).meet());
}

// Who connects and says nothing, or what no rank would, or goes again; and many of them.
TEST(NetworkMeeting, TurnsStrangersAway) {
  std::vector<Descriptor> strangers;
  expect_joined(Meeting(3).meet([&](const std::vector<std::string>& places) {
    for (int i = 0; i < 300; ++i) {
      strangers.push_back(connected_to(places[static_cast<std::size_t>(i % 2)]));
      if (i % 3 == 0)
        send(strangers.back().get(), "GET / HTTP/1.1\r\nHost: nobody, who will not be answered\r\n", 40, 0);
      if (i % 3 == 1) strangers.pop_back();
    }
  }));
}

// A rank that came before hundreds who say nothing.
TEST(NetworkMeeting, KeepsARankThatHasSaidWhoItIs) {
  const Secret secret = random_bytes();
  NetworkMeeting meeting(kLoopback, {0, 2, secret}, kNoHang);
  std::vector<Descriptor> strangers;
  Handshake rank(connected_to(meeting.place()), {1, 2, secret}, /*connected=*/true);
  EXPECT_FALSE(rank.advance(Sockets::of_system()));
  for (int i = 0; i < 200; ++i) strangers.push_back(connected_to(meeting.place()));
  auto joined = std::async(std::launch::async, [&] { return meeting.join({meeting.place(), "1 127.0.0.1"}); });
  while (!rank.advance(Sockets::of_system())) std::this_thread::yield();
  EXPECT_TRUE(joined.get()[1].stream);
}

// A hundred of them at a time, before the rank comes.
TEST(NetworkMeeting, OutlivesTenThousandStrangers) {
#ifdef ZERO_SANITIZED
  constexpr int kStrangers = 1000;
#else
  constexpr int kStrangers = 10'000;
#endif
  const Secret secret = random_bytes();
  NetworkMeeting meeting(kLoopback, {0, 2, secret}, kNoHang);
  auto joined = std::async(std::launch::async, [&] { return meeting.join({meeting.place(), "1 127.0.0.1"}); });
  std::deque<Descriptor> strangers;
  for (int i = 0; i < kStrangers; ++i) {
    strangers.push_back(connected_to(meeting.place()));
    if (i % 3 == 0) send(strangers.back().get(), "SSH-2.0-nobody", 14, MSG_NOSIGNAL);
    if (strangers.size() > 100) strangers.pop_front();
  }
  Handshake rank(connected_to(meeting.place()), {1, 2, secret}, /*connected=*/true);
  while (!rank.advance(Sockets::of_system())) std::this_thread::yield();
  EXPECT_TRUE(joined.get()[1].stream);
}

// One that was turned away because there were too many comes again.
TEST(NetworkMeeting, ConnectsAgainWhereItWasTurnedAway) {
  const Secret secret = random_bytes();
  NetworkMeeting meeting(kLoopback, {1, 2, secret}, kNoHang);
  const Listener place = bind_listener(kLoopback, 0);
  ASSERT_EQ(listen(place.socket.get(), 4), 0);
  auto joined = std::async(std::launch::async, [&] {
    return meeting.join({std::to_string(place.port) + " 127.0.0.1", meeting.place()});
  });
  Descriptor(accept(place.socket.get(), nullptr, nullptr));
  Descriptor second(accept(place.socket.get(), nullptr, nullptr));
  fcntl(second.get(), F_SETFL, O_NONBLOCK);
  Handshake other(std::move(second), {0, 2, secret}, /*connected=*/false);
  while (!other.advance(Sockets::of_system())) std::this_thread::yield();
  EXPECT_TRUE(joined.get()[0].stream);
}

TEST(NetworkMeeting, NamesWhoDoesNotComeAndWhoCameInstead) {
  Meeting meeting(2, Timeout(2000));
  meeting.own(1).secret[3] ^= 1;
  const auto met = meeting.meet();
  EXPECT_NE(met[1].error.find("who listens at 127.0.0.1 does not know the secret of this run"), std::string::npos)
      << met[1].error;
  EXPECT_NE(met[0].error.find("rank 1 at 127.0.0.1 did not come within 2000 ms; who connected from 127.0.0.1"),
            std::string::npos)
      << met[0].error;
}

// Both ends of one stream, each of which sees what the other says.
TEST(Handshake, SaysWhatIsWrongWithTheOther) {
  const auto told = [](const std::function<void(Hello&)>& change) {
    auto [own, other] = stream_pair();
    Handshake handshake(std::move(own), {.rank = 0, .size = 2}, /*connected=*/false);
    Hello hello;
    hello.rank = 1, hello.size = 2;
    change(hello);
    EXPECT_EQ(send(other.get(), &hello, sizeof hello, 0), ssize_t{sizeof hello});
    try {
      handshake.advance(Sockets::of_system());
    } catch (const Refused& refusal) {
      return std::string(refusal.what());
    }
    return std::string();
  };
  const auto expect = [&](const std::string& wanted, const std::function<void(Hello&)>& change) {
    const std::string text = told(change);
    EXPECT_NE(text.find(wanted), text.npos) << text;
  };
  EXPECT_EQ(told([](Hello&) {}), "") << "it waits for the seal";
  expect("is no rank of libzero's", [](Hello& hello) { hello.magic[0] = 'L'; });
  expect("another byte order", [](Hello& hello) { hello.byte_order = 0x0201; });
  expect("another version of libzero, whose messages have version 9", [](Hello& hello) { hello.version = 9; });
  expect("is one of 3 ranks", [](Hello& hello) { hello.size = 3; });
  expect("says that it is rank 0", [](Hello& hello) { hello.rank = 0; });
  expect("says that it is rank 2", [](Hello& hello) { hello.rank = 2; });
}

// Who has heard a rank's seal cannot show it as his own.
TEST(Handshake, IsNoMirror) {
  auto [own, other] = stream_pair();
  Handshake handshake(std::move(own), {.rank = 0, .size = 2, .secret = random_bytes()}, /*connected=*/false);
  Hello mine;
  mine.rank = 1, mine.size = 2;
  ASSERT_EQ(send(other.get(), &mine, sizeof mine, 0), ssize_t{sizeof mine});
  EXPECT_FALSE(handshake.advance(Sockets::of_system()));
  std::array<char, sizeof(Hello) + sizeof(Seal)> heard;
  ASSERT_EQ(recv(other.get(), heard.data(), heard.size(), 0), std::ssize(heard));
  ASSERT_EQ(send(other.get(), heard.data() + sizeof(Hello), sizeof(Seal), 0), ssize_t{sizeof(Seal)});
  EXPECT_THROW(handshake.advance(Sockets::of_system()), Refused);
}

}  // namespace zero::test::network_meeting_test
