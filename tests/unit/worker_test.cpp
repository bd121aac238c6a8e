#include "base/worker.h"

#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <numeric>
#include <vector>

#include "zero/error.h"

namespace zero::worker_test {

TEST(Worker, RunsTasksInOrder) {
  std::vector<int> seen;
  {
    Worker worker;
    for (int i = 0; i < 1000; ++i) worker.submit([&seen, i] { seen.push_back(i); });
  }
  std::vector<int> expected(1000);
  std::iota(expected.begin(), expected.end(), 0);
  EXPECT_EQ(seen, expected);
}

TEST(Worker, WaitRethrowsEveryTime) {
  Worker worker;
  Pending failed = worker.submit([] { throw CommError("lost"); });
  EXPECT_THROW(failed.wait(), CommError);
  EXPECT_THROW(failed.wait(), CommError);
  EXPECT_TRUE(failed.done());
}

// Of a device: it has an order of its own.
class Queued final : public Pending::State {
 public:
  explicit Queued(std::vector<Stream>& streams) : streams_(streams) {}
  void wait() override { streams_.push_back({-1, -1, -1}); }
  void wait_in(const Stream& stream) override { streams_.push_back(stream); }
  bool done() override { return false; }

 private:
  std::vector<Stream>& streams_;
};

TEST(Pending, IsWaitedForByTheHostOrByAStream) {
  std::vector<Stream> streams;
  Pending pending(std::make_shared<Queued>(streams));
  const Stream stream{7, 1, 2};
  pending.wait(stream);
  pending.wait();
  EXPECT_EQ(streams, (std::vector<Stream>{stream, {-1, -1, -1}}));
}

TEST(Pending, OfTheHostIsOverBeforeAStreamGoesOn) {
  Worker worker;
  bool ran = false;
  worker.submit([&] { ran = true; }).wait(Stream{});
  EXPECT_TRUE(ran);
  EXPECT_THROW(worker.submit([] { throw CommError("lost"); }).wait(Stream{}), CommError);
  Pending().wait(Stream{});
}

TEST(Worker, GoesOnAfterAFailure) {
  Worker worker;
  bool ran = false;
  worker.submit([] { throw CommError("lost"); });
  worker.submit([&] { ran = true; }).wait();
  EXPECT_TRUE(ran);
}

TEST(Worker, IsDoneWhenTheTaskHasRun) {
  Worker worker;
  std::promise<void> gate;
  Pending pending = worker.submit([&] { gate.get_future().wait(); });
  EXPECT_FALSE(pending.done());
  gate.set_value();
  pending.wait();
  EXPECT_TRUE(pending.done());
}

TEST(Worker, CallsWhenItHasHadNothingToDo) {
  Worker worker;
  std::promise<void> thrice;
  int calls = 0;
  bool had_tasks = true;
  worker.when_idle(std::chrono::milliseconds(1), [&] {
    if (++calls == 2) had_tasks = worker.has_tasks();
    if (calls == 3) thrice.set_value();
    return calls % 2 == 1;
  });
  thrice.get_future().wait();
  int at_task = 0;
  worker.submit([&] { at_task = calls; }).wait();
  EXPECT_GE(at_task, 3);
  EXPECT_FALSE(had_tasks);
}

// It ends though it would be called again and again.
TEST(Worker, EndsWhileItHasNothingToDo) {
  std::promise<void> called;
  int calls = 0;
  {
    Worker worker;
    worker.when_idle(std::chrono::milliseconds(1), [&] {
      if (++calls == 1) called.set_value();
      return true;
    });
    called.get_future().wait();
  }
  EXPECT_GE(calls, 1);
}

TEST(Worker, APendingOutlivesItsWorker) {
  Pending pending;
  {
    Worker worker;
    pending = worker.submit([] {});
  }
  pending.wait();
  EXPECT_TRUE(pending.done());
}

TEST(Pending, IsCompleteByDefault) {
  Pending pending;
  EXPECT_TRUE(pending.done());
  pending.wait();
}

}  // namespace zero::worker_test
