#include "zero/samples.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "partition/permutation.h"
#include "zero/error.h"

namespace zero::samples_test {

using Indices = std::vector<std::size_t>;

Indices counting(std::size_t count) {
  Indices all(count);
  std::iota(all.begin(), all.end(), 0);
  return all;
}

Indices sorted(Indices indices) {
  std::ranges::sort(indices);
  return indices;
}

Indices permuted(std::uint64_t size, std::uint64_t key) {
  const Permutation permutation(size, key);
  Indices all;
  for (std::uint64_t i = 0; i < size; ++i) all.push_back(permutation(i));
  return all;
}

// A run's data on all ranks: by the number of the micro-batch.
struct Course {
  int ranks = 1, accumulate = 1;
  bool reduces_each = false;
  std::int64_t size = 1;
  SampleOptions options = {};
  int shard = 0;

  Plan plan() const { return (reduces_each ? Plan::zero2() : Plan::ddp()).accumulate(accumulate); }
  MeshShape mesh() const { return {ranks, {.shard = shard}}; }
  Samples of(int rank) const { return {size, mesh(), rank, plan(), options}; }
  // Of the step with this number, in the order of micro-batches.
  Indices global_batch(std::int64_t step) const {
    const Samples samples = of(0);
    Indices all;
    for (std::int64_t i = 0; i < std::int64_t{ranks} * accumulate; ++i) {
      const Indices mine = samples.indices(step * ranks * accumulate + i);
      all.insert(all.end(), mine.begin(), mine.end());
    }
    return all;
  }
  Indices epoch(std::int64_t number) const {
    const std::int64_t steps = of(0).steps();
    Indices all;
    for (std::int64_t step = number * steps; step < (number + 1) * steps; ++step) {
      const Indices batch = global_batch(step);
      all.insert(all.end(), batch.begin(), batch.end());
    }
    return all;
  }
};

TEST(Permutations, HaveEachElementOnce) {
  for (const std::uint64_t size : {1, 2, 3, 4, 5, 7, 8, 64, 100, 1000, 4097})
    for (std::uint64_t key = 0; key < 20; ++key) EXPECT_EQ(sorted(permuted(size, key)), counting(size)) << size;
}

// Of the 24 orders of four elements each comes up as often as by chance, within five deviations.
TEST(Permutations, OfFewElementsAreAllEquallyLikely) {
  constexpr int kOrders = 24, kEach = 1000, kDraws = kOrders * kEach;
  std::map<Indices, int> times;
  for (std::uint64_t key = 0; key < kDraws; ++key) ++times[permuted(4, key)];
  EXPECT_EQ(times.size(), kOrders);
  for (const auto& [order, count] : times) EXPECT_NEAR(count, kEach, 155);
}

// Where an element goes, and how many neighbours stay neighbours, tells nothing of where it was.
TEST(Permutations, OfManyElementsKeepNothingOfTheirOrder) {
  constexpr std::int64_t kParts = 16, kEach = 256, kSize = kParts * kParts * kEach;
  const Indices order = permuted(kSize, 5);
  std::vector<int> times(kParts * kParts);
  int neighbours = 0;
  for (std::size_t i = 0; i < order.size(); ++i) {
    ++times[i * kParts / kSize * kParts + order[i] * kParts / kSize];
    if (i > 0 && order[i] == order[i - 1] + 1) ++neighbours;
  }
  for (const int count : times) EXPECT_NEAR(count, kEach, 80);
  EXPECT_LE(neighbours, 8);  // one by chance
}

TEST(Samples, OfAnEpochAreAllOfThemOnce) {
  const Course run{.ranks = 2, .size = 24, .options = {.batch = 3}};
  EXPECT_EQ(run.of(0).steps(), 4);
  EXPECT_EQ(sorted(run.epoch(0)), counting(24));
  EXPECT_EQ(sorted(run.epoch(3)), counting(24));
}

TEST(Samples, HaveAnotherOrderInEachEpochAndBySeed) {
  Course run{.size = 50};
  const Indices first = run.epoch(0);
  EXPECT_NE(first, run.epoch(1));
  EXPECT_EQ(first, run.epoch(0));
  run.options.seed = 1;
  EXPECT_NE(first, run.epoch(0));
  run.options.shuffle = false;
  EXPECT_EQ(run.epoch(0), counting(50));
  EXPECT_EQ(run.epoch(1), counting(50));
}

// However a step's micro-batches are spread over ranks and accumulation, or its samples over micro-batches.
TEST(Samples, OfAGlobalBatchAreTheSameWhoeverTakesThem) {
  for (const LastBatch last : {LastBatch::pad, LastBatch::drop, LastBatch::uneven}) {
    const Course whole{.size = 103, .options = {.batch = 24, .seed = 9, .last = last}};
    for (const auto& [ranks, accumulate] : {std::pair(2, 1), {1, 3}, {4, 2}, {3, 4}, {2, 12}})
      for (const bool reduces_each : {false, true}) {
        const Course split{ranks, accumulate, reduces_each, 103, {24 / (ranks * accumulate), true, 9, last}};
        ASSERT_EQ(split.of(0).steps(), whole.of(0).steps());
        for (std::int64_t step = 0; step < 12; ++step)
          EXPECT_EQ(split.global_batch(step), whole.global_batch(step)) << ranks << " x " << accumulate;
      }
  }
}

TEST(Samples, OfTheLastStepArePaddedFromTheEpochsBeginning) {
  const Course run{.ranks = 2, .size = 10, .options = {.batch = 2, .last = LastBatch::pad}};
  const Indices epoch = run.epoch(1);
  ASSERT_EQ(epoch.size(), 12u);
  EXPECT_EQ(sorted({epoch.begin(), epoch.begin() + 10}), counting(10));
  EXPECT_EQ(epoch[10], epoch[0]);
  EXPECT_EQ(epoch[11], epoch[1]);
  EXPECT_EQ(run.of(1).weight(5), 1);
}

TEST(Samples, FewerThanAStepTakesComeAgain) {
  const Course run{.ranks = 4, .size = 3, .options = {.batch = 2, .shuffle = false}};
  EXPECT_EQ(run.epoch(0), (Indices{0, 1, 2, 0, 1, 2, 0, 1}));
}

TEST(Samples, OfTheLastStepAreDropped) {
  const Course run{.ranks = 2, .size = 10, .options = {.batch = 2, .last = LastBatch::drop}};
  EXPECT_EQ(run.of(0).steps(), 2);
  EXPECT_EQ(run.epoch(0).size(), 8u);
  EXPECT_NE(sorted(run.epoch(0)), sorted(run.epoch(1)));
}

TEST(Samples, OfTheLastStepAreSpread) {
  const Course run{.ranks = 4, .size = 19, .options = {.batch = 4, .shuffle = false, .last = LastBatch::uneven}};
  const Samples samples = run.of(0);
  EXPECT_EQ(samples.steps(), 2);
  std::vector<std::size_t> sizes;
  double weights = 0;
  for (std::int64_t micro = 4; micro < 8; ++micro) {
    const std::size_t count = samples.indices(micro).size();
    EXPECT_DOUBLE_EQ(samples.weight(micro), static_cast<double>(count) * 4 / 3);
    sizes.push_back(count);
    weights += samples.weight(micro);
  }
  EXPECT_EQ(sizes, (std::vector<std::size_t>{0, 1, 1, 1}));
  EXPECT_DOUBLE_EQ(weights, 4);
  for (std::int64_t micro = 0; micro < 4; ++micro) EXPECT_EQ(samples.weight(micro), 1);
  EXPECT_EQ(run.epoch(0), counting(19));
  EXPECT_EQ(samples.place(7), (SamplePlace{0, 16}));
  EXPECT_EQ(samples.place(8), (SamplePlace{1, 0}));
}

// A rank's micro-batches are those that its engine numbers, which depends on when the plan reduces.
TEST(Samples, AreNumberedAsAnEnginesMicroBatches) {
  const auto numbers = [](const Course& run, int rank) {
    std::vector<std::int64_t> all;
    for (std::int64_t k = 0; k < 4; ++k) all.push_back(run.of(rank).number(k));
    return all;
  };
  const Course adds{.ranks = 3, .accumulate = 2, .reduces_each = false, .size = 60};
  EXPECT_EQ(numbers(adds, 1), (std::vector<std::int64_t>{2, 3, 8, 9}));
  const Course reduces{.ranks = 3, .accumulate = 2, .reduces_each = true, .size = 60};
  EXPECT_EQ(numbers(reduces, 1), (std::vector<std::int64_t>{1, 4, 7, 10}));
  EXPECT_EQ(reduces.of(1).before(7), 2);
  EXPECT_EQ(reduces.of(1).before(10), 2);
}

TEST(Samples, GoOnWhereAnotherNumberOfRanksStopped) {
  const Course before{.ranks = 2, .size = 40, .options = {.batch = 3, .last = LastBatch::uneven}};
  const SamplePlace stopped = before.of(0).place(2 * 9);  // the second step of the second epoch is over
  EXPECT_EQ(stopped, (SamplePlace{1, 12}));
  const Course after{.ranks = 5, .accumulate = 2, .size = 40, .options = {.batch = 1, .last = LastBatch::uneven}};
  Indices left;
  for (int rank = 0; rank < 5; ++rank) {
    Samples samples = after.of(rank);
    samples.begin_at(stopped, 18 + samples.number(0));
    EXPECT_THROW(samples.indices(17), StateError);
    for (std::int64_t k = 0; samples.place(samples.number(k)).epoch == 1; ++k)
      for (const std::size_t index : samples.indices(samples.number(k))) left.push_back(index);
    EXPECT_EQ(samples.place(samples.number(6)), (SamplePlace{2, 0}));
  }
  const Indices epoch = before.epoch(1);
  EXPECT_EQ(sorted(left), sorted({epoch.begin() + 12, epoch.end()}));
}

TEST(Samples, LeaveALastStepOfADroppingRunThatIsNotFull) {
  const Course run{.ranks = 2, .size = 10, .options = {.batch = 2, .last = LastBatch::drop}};
  Samples samples = run.of(1);
  samples.begin_at({4, 7}, 1);
  EXPECT_EQ(samples.place(1), (SamplePlace{5, 0}));
}

// Along a mesh the data axis is replicas and shards together.
TEST(Samples, AreOfTheDataAxis) {
  const Course run{.ranks = 4, .accumulate = 2, .size = 64, .shard = 2};
  const Samples samples(64, run.mesh(), 3, Plan::hybrid().accumulate(2), {});
  EXPECT_EQ(samples.number(0), 3);
  EXPECT_EQ(samples.number(1), 7);
  EXPECT_EQ(samples.number(2), 11);
}

TEST(Samples, ThatCannotBeAreRefused) {
  const auto make = [](std::int64_t size, const SampleOptions& options) {
    return Samples(size, MeshShape(4), 0, Plan::ddp(), options);
  };
  EXPECT_THROW(make(0, {}), ConfigError);
  EXPECT_THROW(make(8, {.batch = 0}), ConfigError);
  EXPECT_THROW(make(7, {.batch = 2, .last = LastBatch::drop}), ConfigError);
  Samples samples = make(7, {});
  EXPECT_THROW(samples.begin_at({0, 7}, 0), ConfigError);
  EXPECT_THROW(samples.begin_at({-1, 0}, 0), ConfigError);
}

}  // namespace zero::samples_test
