#include "comm/gate.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>

#include <array>
#include <atomic>
#include <memory>
#include <optional>
#include <thread>

#include "zero/error.h"

namespace zero::gate_test {

const Fingerprint kCall = Fingerprint::of(1, {Collective::barrier});

// One of two ranks at a gate.
struct Rank {
  Rank(const Descriptor& file, int rank)
      : segment(std::make_shared<Segment>(file, rank, kShape)), gate(segment, rank, {0, 1}, std::chrono::minutes(2)) {
    segment->join();
  }

  static constexpr int kRanks = 2;
  static const Segment::Shape kShape;

  std::shared_ptr<Segment> segment;
  Gate gate;
};
const Segment::Shape Rank::kShape{kRanks, Gate::bytes(kRanks), 1};

// A thread that a signal stops wherever it is, until it is let go.
std::atomic<bool> stopped, let_go;

void stop_here(int) {
  stopped = true;
  while (!let_go) sched_yield();
}

class Stopping {
 public:
  Stopping() {
    struct sigaction action {};
    action.sa_handler = stop_here;
    action.sa_flags = SA_RESTART;
    sigaction(SIGUSR1, &action, &before_);
  }
  ~Stopping() { sigaction(SIGUSR1, &before_, nullptr); }
  Stopping(const Stopping&) = delete;
  Stopping& operator=(const Stopping&) = delete;

 private:
  struct sigaction before_ {};
};

// Whoever looks around is stopped somewhere, the other leaves meanwhile.
TEST(Gate, ARankThatLeavesIsNeverTakenForDead) {
  const Stopping scope;
  for (int trial = 0; trial < 400; ++trial) {
    stopped = let_go = false;
    const Descriptor file = Segment::create(Rank::kShape);
    auto stays = std::make_unique<Rank>(file, 0);
    std::thread other([&, looks = pthread_self()] {
      std::optional<Rank> leaves(std::in_place, file, 1);
      leaves->gate.meet(kCall);
      pthread_kill(looks, SIGUSR1);
      while (!stopped) sched_yield();
      leaves->gate.leave();
      leaves.reset();
      let_go = true;
    });
    stays->gate.meet(kCall);
    std::string error;
    try {
      while (!let_go) stays->gate.check(kCall, {});
      stays->gate.check(kCall, {});
    } catch (const CommError& thrown) {
      error = thrown.what();
    }
    other.join();
    ASSERT_EQ(error, "") << "in trial " << trial;
  }
}

TEST(Gate, TellsWhoFailedInACall) {
  const Descriptor file = Segment::create(Rank::kShape);
  Rank fails(file, 1), looks(file, 0);
  const std::array<int, 2> both{0, 1};
  const std::array<int, 1> self{0};
  const Fingerprint call = Fingerprint::split(7), other = Fingerprint::split(8);
  looks.gate.check(call, both);
  fails.gate.fail_in(call.sequence);
  looks.gate.check(call, self);
  looks.gate.check(other, both);
  try {
    looks.gate.check(call, both);
    ADD_FAILURE() << "nobody failed";
  } catch (const CommError& error) {
    EXPECT_NE(std::string(error.what()).find("rank 0: split #7: rank 1 failed"), std::string::npos) << error.what();
  }
}

TEST(Gate, TellsWhyARankGaveUp) {
  const Descriptor file = Segment::create(Rank::kShape);
  Rank gives_up(file, 1), comes(file, 0);
  gives_up.gate.give_up("no gas");
  gives_up.gate.give_up("no wheels");
  for (const int time : {1, 2}) try {
      comes.gate.meet(kCall);
      ADD_FAILURE() << "nobody gave up " << time;
    } catch (const CommError& error) {
      EXPECT_NE(std::string(error.what()).find("rank 0: barrier #1: rank 1 failed there: no gas ("), std::string::npos)
          << error.what();
    }
}

}  // namespace zero::gate_test
