#include "comm/descriptor_passing.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <atomic>
#include <cstddef>
#include <future>
#include <memory>
#include <thread>
#include <vector>

#include "zero/error.h"

namespace zero::descriptor_test {

using std::chrono::milliseconds;

constexpr std::chrono::minutes kLong{2};
const uid_t kStranger = geteuid() + 1;
const StillWanted kWanted = [] {};

template <class Call>
std::string error_of(const Call& call) {
  try {
    call();
  } catch (const CommError& error) {
    return error.what();
  }
  return "none";
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != text.npos;
}

Descriptor some_file() {
  int ends[2];
  EXPECT_EQ(pipe(ends), 0);
  close(ends[1]);
  return Descriptor(ends[0]);
}

ino_t file_of(const Descriptor& descriptor) {
  struct stat info {};
  EXPECT_EQ(fstat(descriptor.get(), &info), 0);
  return info.st_ino;
}

TEST(Descriptors, GoToAsManyAsAreExpected) {
  const Descriptor file = some_file();
  const Handout handout;
  std::vector<std::future<Descriptor>> taken;
  for (int i = 0; i < 3; ++i)
    taken.push_back(std::async(std::launch::async, [&] { return fetch_descriptor(handout.name(), kLong, kWanted); }));
  handout.give(file.get(), 3, kLong, kWanted);
  for (auto& each : taken) EXPECT_EQ(file_of(each.get()), file_of(file));
}

// Whoever asks is a stranger to a handout of another user's.
TEST(Descriptors, AreNotGivenToAnotherUsersProcess) {
  const Descriptor file = some_file();
  const Handout handout(kStranger);
  auto taker = std::async(std::launch::async,
                          [&] { return error_of([&] { fetch_descriptor(handout.name(), kLong, kWanted); }); });
  bool refused = false;
  const auto until_refused = [&] {
    refused = refused || taker.wait_for(milliseconds(0)) == std::future_status::ready;
    if (refused) throw StateError("seen enough");
  };
  EXPECT_THROW(handout.give(file.get(), 1, kLong, until_refused), StateError);
  EXPECT_TRUE(contains(taker.get(), "has gone"));
}

TEST(Descriptors, AreNotTakenFromAnotherUsersProcess) {
  const Handout handout;
  const std::string error = error_of([&] { fetch_descriptor(handout.name(), kLong, kWanted, kStranger); });
  EXPECT_TRUE(contains(error, "another user's")) << error;
}

// They come without end, so that there is always one more at the door.
TEST(Descriptors, StrangersDoNotOutlastTheTimeLimit) {
  const Descriptor file = some_file();
  auto handout = std::make_unique<Handout>(kStranger);
  std::atomic<bool> over{false};
  std::thread strangers([&, name = handout->name()] {
    while (!over) error_of([&] { fetch_descriptor(name, kLong, kWanted); });
  });
  const std::string error = error_of([&] { handout->give(file.get(), 1, milliseconds(50), kWanted); });
  over = true;
  handout.reset();
  strangers.join();
  EXPECT_TRUE(contains(error, "not all of them came")) << error;
}

// No descriptors beyond those that are open.
class NoDescriptorsLeft {
 public:
  NoDescriptorsLeft() {
    getrlimit(RLIMIT_NOFILE, &before_);
    rlimit none = before_;
    none.rlim_cur = static_cast<rlim_t>(some_file().get());  // the lowest number that is free
    setrlimit(RLIMIT_NOFILE, &none);
  }
  ~NoDescriptorsLeft() { setrlimit(RLIMIT_NOFILE, &before_); }
  NoDescriptorsLeft(const NoDescriptorsLeft&) = delete;
  NoDescriptorsLeft& operator=(const NoDescriptorsLeft&) = delete;

 private:
  rlimit before_{};
};

// Connected to a handout, without waiting for what it gives.
Descriptor connected(const std::string& name) {
  Descriptor fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  name.copy(address.sun_path + 1, sizeof address.sun_path - 1);
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  EXPECT_EQ(connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), length), 0);
  return fd;
}

TEST(Descriptors, WhenThisProcessHasNoneLeftItSaysSo) {
  const Descriptor file = some_file();
  const Handout handout;
  const Descriptor taker = connected(handout.name());
  const NoDescriptorsLeft scope;
  const std::string error = error_of([&] { handout.give(file.get(), 1, kLong, kWanted); });
  EXPECT_TRUE(contains(error, "Too many open files")) << error;
}

// What a wait is told of a death at the third time it asks.
StillWanted dies_soon() {
  return [asked = 0]() mutable {
    if (++asked == 3) throw CommError("rank 2 died", "see that rank's own error");
  };
}

TEST(Descriptors, WhoeverDiesBeforeItTakesOneIsNamedByWhoeverWaitsForIt) {
  const Descriptor file = some_file();
  const Handout handout;
  connected(handout.name());
  const std::string error = error_of([&] { handout.give(file.get(), 1, kLong, dies_soon()); });
  EXPECT_TRUE(contains(error, "rank 2 died")) << error;
}

TEST(Descriptors, WhoeverDiesBeforeItGivesOneIsNamedByWhoeverWaitsForIt) {
  const std::string gone = Handout().name();
  std::string error = error_of([&] { fetch_descriptor(gone, kLong, dies_soon()); });
  EXPECT_TRUE(contains(error, "rank 2 died")) << error;

  auto handout = std::make_unique<Handout>();
  const std::string name = handout->name();
  error = error_of([&] {
    fetch_descriptor(name, kLong, [&handout, look = dies_soon()] {
      handout.reset();
      look();
    });
  });
  EXPECT_TRUE(contains(error, "rank 2 died")) << error;
}

TEST(Descriptors, WhereNobodyDiedTheConnectionIsToBlame) {
  const Descriptor file = some_file();
  const Handout handout;
  connected(handout.name());
  const std::string error = error_of([&] { handout.give(file.get(), 1, milliseconds(100), kWanted); });
  EXPECT_TRUE(contains(error, "a rank did not take the memory: Broken pipe")) << error;
}

}  // namespace zero::descriptor_test
