// Lines of several processes on one output, whatever its reader does.
#include "cli/processes/relay.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <csignal>
#include <cstring>

namespace cli::relay_test {

using zero::Descriptor;

void set_nonblocking(int fd) {
  ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_NONBLOCK);
}

class Relays : public testing::Test {
 protected:
  enum class To { pipe, socket };

  explicit Relays(To to = To::pipe) {
    int ends[2];
    const int made = to == To::pipe ? ::pipe2(ends, O_CLOEXEC) : ::socketpair(AF_UNIX, SOCK_STREAM, 0, ends);
    EXPECT_EQ(made, 0);
    reader_ = Descriptor(ends[0]), output_ = Descriptor(ends[1]);
    set_nonblocking(reader_.get());
    std::signal(SIGPIPE, SIG_IGN);
  }

  Descriptor source(const std::string& prefix) {
    Descriptor end = relay_.open(prefix, output_.get());
    set_nonblocking(end.get());
    return end;
  }

  // What the reader gets when `source` has written `text`.
  std::string after(const Descriptor& source, std::string_view text) {
    EXPECT_EQ(::write(source.get(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
    relay_.pump();
    return read();
  }
  std::string at_the_end() {
    EXPECT_TRUE(relay_.finish());
    return read();
  }

  std::string read() {
    std::string text(1 << 20, '\0');
    const ssize_t got = ::read(reader_.get(), text.data(), text.size());
    text.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
    return text;
  }

  // Writes lines until nobody takes more, however often the relay is pumped; returns how many bytes that were.
  std::size_t fill(const Descriptor& source) {
    const std::string lines(1 << 12, '\n');
    std::size_t bytes = 0;
    for (bool more = true; more;) {
      more = false;
      for (ssize_t count; (count = ::write(source.get(), lines.data(), lines.size())) > 0; more = true)
        bytes += static_cast<std::size_t>(count);
      relay_.pump();
    }
    return bytes;
  }

  Descriptor reader_, output_;
  Relay relay_;
};

TEST_F(Relays, PassOnWholeLines) {
  const Descriptor a = source("[a] ");
  EXPECT_EQ(after(a, "one"), "");
  EXPECT_EQ(after(a, "\n\ntwo\nth"), "[a] one\n[a] \n[a] two\n");
  EXPECT_EQ(after(a, "ree\n"), "[a] three\n");
  EXPECT_EQ(after(a, "rest"), "");
  EXPECT_EQ(at_the_end(), "[a] rest\n");
}

TEST_F(Relays, PassOnProgressAsItComes) {
  const Descriptor a = source("[a] ");
  EXPECT_EQ(after(a, "10 %\r"), "[a] 10 %\r");
  EXPECT_EQ(after(a, "20 %\r30 %\r"), "[a] 20 %\r[a] 30 %\r");
  EXPECT_EQ(after(a, "done\n"), "[a] done\n");
  EXPECT_EQ(after(a, "\r 10 %"), "[a] \r");
  EXPECT_EQ(after(a, "\r 20 %"), "[a]  10 %\r");
  EXPECT_EQ(at_the_end(), "[a]  20 %\n");
}

TEST_F(Relays, TakeACarriageReturnAndALineEndAsOneEnd) {
  const Descriptor a = source("[a] ");
  EXPECT_EQ(after(a, "one\r\ntwo\r\n"), "[a] one\r\n[a] two\r\n");
  EXPECT_EQ(after(a, "three\r"), "[a] three\r");
  EXPECT_EQ(after(a, "\nfour\n"), "\n[a] four\n");
}

TEST_F(Relays, WriteOverNobodysProgressButItsOwn) {
  const Descriptor a = source("[a] "), b = source("[b] ");
  EXPECT_EQ(after(a, "10 %\r"), "[a] 10 %\r");
  EXPECT_EQ(after(b, "hello\n"), "\n[b] hello\n");
  EXPECT_EQ(after(a, "\n"), "");
  EXPECT_EQ(after(a, "20 %\r"), "[a] 20 %\r");
  relay_.say(output_.get(), "ours\n");
  EXPECT_EQ(at_the_end(), "\nours\n");
}

TEST_F(Relays, CutLinesThatAreLongerThanMemoryShouldHold) {
  const Descriptor a = source("");
  const std::string part(1 << 16, 'x');
  std::string got;
  for (int i = 0; i < 17; ++i) got += after(a, part);
  while (relay_.unwritten() > 0) {
    relay_.pump();
    got += read();
  }
  EXPECT_EQ(got, std::string(17 << 16, 'x') + '\n');
}

class RelaysTo : public Relays, public testing::WithParamInterface<int> {
 protected:
  RelaysTo() : Relays(static_cast<To>(GetParam())) {}
};
INSTANTIATE_TEST_SUITE_P(Kinds, RelaysTo, testing::Values(0, 1));

TEST_P(RelaysTo, KeepALimitedAmountForAReaderThatStallsAndLoseNothing) {
  const Descriptor a = source("");
  const std::size_t bytes = fill(a);
  EXPECT_LT(bytes, std::size_t{4} << 20);
  EXPECT_GE(relay_.unwritten(), std::size_t{1} << 20);
  std::vector<pollfd> polled;
  relay_.watch(polled);
  EXPECT_EQ(polled.size(), 1u) << "the output, not the pipe";
  std::string all;
  while (!relay_.finish()) all += read();
  for (std::string more = read(); !more.empty(); more = read()) all += more;
  EXPECT_EQ(all.size(), bytes);
  EXPECT_EQ(relay_.unwritten(), 0u);
}

TEST_P(RelaysTo, LeaveTheOutputBlockingForThoseWhoShareIt) {
  const Descriptor a = source("");
  fill(a);
  EXPECT_EQ(::fcntl(output_.get(), F_GETFL) & O_NONBLOCK, 0);
}

TEST_F(Relays, GiveEverySourceItsTurn) {
  const Descriptor a = source("a"), b = source("b");
  fill(a);
  EXPECT_EQ(::write(b.get(), "\n", 1), 1);
  std::string all;
  for (int turns = 0; turns < 100 && all.find('b') == all.npos; ++turns) {
    all += read();
    fill(a);
  }
  EXPECT_NE(all.find('b'), all.npos);
}

TEST_F(Relays, DropWhatNobodyCanReadAndSayWhy) {
  const Descriptor a = source("");
  reader_ = Descriptor();
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(::write(a.get(), "lost\n", 5), 5);
    relay_.pump();
  }
  EXPECT_TRUE(relay_.finish());
  EXPECT_EQ(relay_.error(output_.get()), EPIPE);
  EXPECT_EQ(relay_.unwritten(), 0u);
}

TEST_F(Relays, GoOnWhenADeviceIsFull) {
  const Descriptor full(::open("/dev/full", O_WRONLY | O_CLOEXEC));
  const Descriptor a = relay_.open("", full.get()), b = source("");
  EXPECT_EQ(::write(a.get(), "lost\n", 5), 5);
  EXPECT_EQ(after(b, "kept\n"), "kept\n");
  EXPECT_EQ(relay_.error(full.get()), ENOSPC);
  EXPECT_EQ(relay_.error(output_.get()), 0);
}

}  // namespace cli::relay_test
