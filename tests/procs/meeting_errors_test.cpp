// Ranks that do not meet: one line of ours each, that names the place and what to change, and nothing of LibTorch's.
#include <gtest/gtest.h>

#include <atomic>
#include <regex>
#include <thread>

#include "procs/zero_program.h"

namespace meeting_errors_test {

using procs::contains;
using procs::Port;
using procs::Program;
using procs::rank_variables;
using procs::Result;
using procs::run;
using procs::run_together;
using procs::Variables;
using procs::with;
using procs::Words;
using procs::zero;

const Variables kImpatient{{"ZERO_TIMEOUT", "1"}};
const Variables kOneOfSeveralHosts{{"LOCAL_RANK", "0"}, {"LOCAL_WORLD_SIZE", "1"}};

Variables rank(int number, const std::string& port, const Variables& changes = {}) {
  return with(with(rank_variables(number, 2, port), kImpatient), changes);
}

// Whoever connects to `port` is told `words`, once, and gets nothing more.
class Stranger {
 public:
  explicit Stranger(std::string words) : words_(std::move(words)), thread_([this] { answer(); }) {}
  ~Stranger() {
    ended_ = true;
    ::close(connect_once());
    thread_.join();
  }
  Stranger(const Stranger&) = delete;
  Stranger& operator=(const Stranger&) = delete;

  const std::string& port() const { return port_.number(); }

 private:
  int connect_once() const {
    const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<std::uint16_t>(std::stoi(port())));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    ::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address);
    return fd;
  }
  void answer() const {
    while (!ended_) {
      const int peer = ::accept4(port_.fd(), nullptr, nullptr, SOCK_CLOEXEC);
      ::send(peer, words_.data(), words_.size(), MSG_NOSIGNAL);
      ::close(peer);
    }
  }

  const Port port_{Port::Use::listening};
  std::string words_;
  std::atomic<bool> ended_ = false;
  std::thread thread_;
};

class RanksThatDoNotMeet : public testing::Test {
 protected:
  // A rank that says `expected` of itself, a regular expression, and nothing else.
  static void expect_one_line(const Result& result, const std::string& expected) {
    EXPECT_EQ(result.code, 1) << result.err;
    EXPECT_TRUE(std::regex_match(result.err, std::regex("zero: rank [0-9]+: " + expected + "\n"))) << result.err;
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
  }
  static void expect_one_line(const Variables& variables, const std::string& expected) {
    expect_one_line(run(kTrain, variables), expected);
  }

  static inline const Words kTrain = zero({"train", "--model", "micro", "--steps", "1"});
  static inline const std::string kCheck = "check that rank 0 runs and that MASTER_ADDR and MASTER_PORT name it";
};

TEST_F(RanksThatDoNotMeet, AreToldThatNobodyAnswers) {
  const Port port;
  const std::string refused = ": Connection refused \\(" + kCheck + "\\)";
  expect_one_line(rank(1, port.number()), "nobody answers at 127.0.0.1:" + port.number() + " within 1000 ms" + refused);
  expect_one_line(
      rank(1, port.number(), {{"MASTER_ADDR", "localhost"}}),
      "nobody answers at 127.0.0.1:" + port.number() + " \\(MASTER_ADDR=localhost\\) within 1000 ms" + refused);
  expect_one_line(rank(1, port.number(), kOneOfSeveralHosts),
                  "nobody answers at 127.0.0.1:" + port.number() + " within 1000 ms" + refused);
}

TEST_F(RanksThatDoNotMeet, AreToldThatTheHostIsUnknown) {
  const Variables nowhere{{"MASTER_ADDR", "no-such-host.invalid"}};
  const std::string unknown = ": the host \"no-such-host.invalid\" is unknown: [^\\n]*";
  const Port port;
  const std::string place = "no-such-host.invalid:" + port.number();
  for (int number : {0, 1})
    expect_one_line(rank(number, port.number(), nowhere),
                    "there is no way to " + place + unknown + " \\(check MASTER_ADDR and the network\\)");
  expect_one_line(with(rank(1, port.number(), nowhere), kOneOfSeveralHosts),
                  "nobody answers at " + place + " within 1000 ms" + unknown + " \\(" + kCheck + "\\)");
}

TEST_F(RanksThatDoNotMeet, AreToldThatSomethingElseAnswers) {
  const std::string advice = " \\(" + kCheck + ", or set MASTER_PORT to a port that no other program uses\\)";
  const auto expected = [&](const std::string& port, const std::string& why) {
    return "what listens at 127.0.0.1:" + port + " does not answer as rank 0's store does: " + why + advice;
  };
  const Port silent(Port::Use::listening);
  expect_one_line(rank(1, silent.number()), expected(silent.number(), "no valid answer in time"));
  for (const char* words : {"", "SSH-2.0-OpenSSH_9.2p1\r\n", "HTTP/1.0 400 Bad Request\r\n\r\n"}) {
    const Stranger stranger(words);
    expect_one_line(rank(1, stranger.port()), expected(stranger.port(), "[^\\n]+"));
  }
}

TEST_F(RanksThatDoNotMeet, AreToldWhoDoesNotCome) {
  const Port port;
  expect_one_line(rank(0, port.number()), "not all 2 ranks came to 127.0.0.1:" + port.number() +
                                              " within 1000 ms; rank 1 did not \\(see their own errors, check .*\\)");
}

TEST_F(RanksThatDoNotMeet, AreToldThatRankZeroHasGone) {
  const Port port;
  const auto of_three = [&](int number, const char* seconds) {
    return with(rank_variables(number, 3, port.number()), {{"ZERO_TIMEOUT", seconds}});
  };
  const auto results = run_together(kTrain, {of_three(0, "6"), of_three(1, "12")});
  expect_one_line(results[0], "not all 3 ranks came to [^\\n]*");
  expect_one_line(results[1], "[^\\n]*127.0.0.1:" + port.number() + "[^\\n]*");
}

TEST_F(RanksThatDoNotMeet, HearLibTorchWhereThatIsAskedFor) {
  const Stranger stranger("");
  const Result result = run(kTrain, rank(1, stranger.port(), {{"ZERO_DEBUG", "1"}}));
  EXPECT_EQ(result.code, 1);
  EXPECT_TRUE(contains(result.err, "[c10d]")) << result.err;
  EXPECT_TRUE(contains(result.err, "zero: rank 1: what listens at ")) << result.err;
}

}  // namespace meeting_errors_test
