#include "base/worker.h"

#include <gtest/gtest.h>

#include <future>
#include <numeric>
#include <vector>

#include "zero/error.h"

namespace zero {
namespace {

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

}  // namespace
}  // namespace zero
