// Where ranks meet: the file that names the port, and the socket that listens there.
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <thread>

#include "comm/listener.h"
#include "zero/error.h"

namespace zero::meeting_test {

namespace fs = std::filesystem;

class MeetingFile : public testing::Test {
 protected:
  MeetingFile() { mkdtemp(folder_.data()); }
  ~MeetingFile() override { fs::remove_all(folder_); }

  std::string path(const std::string& name) const { return folder_ + "/" + name; }
  void write(const std::string& name, const std::string& text) const { std::ofstream(path(name)) << text; }
  std::string read(const std::string& name) const {
    std::ifstream in(path(name));
    return {std::istreambuf_iterator<char>(in), {}};
  }
  std::size_t files() const {
    return static_cast<std::size_t>(std::distance(fs::directory_iterator(folder_), fs::directory_iterator()));
  }

 private:
  std::string folder_ = (fs::temp_directory_path() / "zero_meeting.XXXXXX").string();
};

std::string line(int port, pid_t process) {
  return std::to_string(port) + " " + std::to_string(process) + "\n";
}

TEST_F(MeetingFile, TellsThePort) {
  EXPECT_EQ(read_port(path("zero-job")), 0);
  publish_port(path("zero-job"), 1234);
  EXPECT_EQ(read_port(path("zero-job")), 1234);
  publish_port(path("zero-job"), 4321);
  EXPECT_EQ(read_port(path("zero-job")), 4321);
  EXPECT_EQ(files(), 1u);
  struct stat info {};
  ASSERT_EQ(stat(path("zero-job").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
}

// Whoever may write to the folder may put a link where a file is about to be written.
TEST_F(MeetingFile, WritesThroughNoLink) {
  write("precious", "mine");
  fs::create_symlink(path("precious"), path("zero-job." + std::to_string(getpid())));
  fs::create_symlink(path("precious"), path("zero-job"));
  publish_port(path("zero-job"), 1234);
  EXPECT_EQ(read("precious"), "mine");
  EXPECT_EQ(read_port(path("zero-job")), 1234);
  EXPECT_FALSE(fs::is_symlink(path("zero-job")));
}

TEST_F(MeetingFile, IsReadThroughNoLinkAndFromNothingButAFile) {
  write("other", line(1234, getpid()));
  EXPECT_EQ(read_port(path("other")), 1234);
  fs::create_symlink(path("other"), path("link"));
  ASSERT_EQ(mkfifo(path("pipe").c_str(), 0600), 0);
  EXPECT_EQ(read_port(path("link")), 0);
  EXPECT_EQ(read_port(path("pipe")), 0);
}

TEST_F(MeetingFile, OfAProcessThatHasEndedSaysNothing) {
  const pid_t child = fork();
  if (child == 0) _exit(0);
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  write("zero-job", line(1234, child));
  EXPECT_EQ(read_port(path("zero-job")), 0);
  write("zero-job", "soon");
  EXPECT_EQ(read_port(path("zero-job")), 0);
}

TEST_F(MeetingFile, ThatCannotBeWrittenIsNamed) {
  try {
    publish_port(path("none/zero-job"), 1234);
    ADD_FAILURE() << "written";
  } catch (const CommError& error) {
    EXPECT_NE(std::string(error.what()).find("none/zero-job: No such file"), std::string::npos) << error.what();
  }
}

sockaddr_in place_of(const Descriptor& socket) {
  sockaddr_in place{};
  socklen_t length = sizeof place;
  EXPECT_EQ(getsockname(socket.get(), reinterpret_cast<sockaddr*>(&place), &length), 0);
  return place;
}

TEST(Listener, IsAtOneAddressOnly) {
  const Listener any = bind_listener(kLoopback, 0);
  EXPECT_GT(any.port, 0);
  EXPECT_EQ(ntohl(place_of(any.socket).sin_addr.s_addr), INADDR_LOOPBACK);
  EXPECT_EQ(ntohs(place_of(any.socket).sin_port), any.port);
  ASSERT_EQ(listen(any.socket.get(), 1), 0);
  EXPECT_THROW(bind_listener(kLoopback, any.port), CommError);
  EXPECT_EQ(bind_listener("127.0.0.2", any.port).port, any.port);
  EXPECT_THROW(bind_listener("no-number", 0), CommError);
}

// Why nobody listens there, or "" when somebody does.
std::string awaited(const std::string& host, int port, std::chrono::milliseconds time) try {
  await_listener(host, port, std::chrono::steady_clock::now() + time);
  return "";
} catch (const CommError& error) {
  return error.what();
}

TEST(Listener, IsAwaited) {
  using namespace std::chrono_literals;
  const Listener place = bind_listener(kLoopback, 0);
  EXPECT_EQ(awaited(kLoopback, place.port, 0ms), "Connection refused");
  EXPECT_EQ(awaited(kLoopback, place.port, 100ms), "Connection refused");
  const std::string unknown = "the host \"no-such-host.invalid\" is unknown: ";
  EXPECT_EQ(awaited("no-such-host.invalid", 1, 0ms).substr(0, unknown.size()), unknown);
  std::thread late([&] { ASSERT_EQ(listen(place.socket.get(), 1), 0); });
  EXPECT_EQ(awaited(kLoopback, place.port, 1h), "");
  late.join();
}

TEST(Listener, KnowsItsWayAround) {
  EXPECT_EQ(address_towards("127.0.0.1", 1), "127.0.0.1");
  EXPECT_TRUE(is_loopback(address_towards("localhost", 1)));
  EXPECT_TRUE(is_loopback("::1"));
  EXPECT_FALSE(is_loopback("10.0.0.1"));
  EXPECT_THROW(address_towards("no-such-host.invalid", 1), CommError);
}

}  // namespace zero::meeting_test
