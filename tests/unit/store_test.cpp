// Stores, blocks, and passages of their bytes: in place, or through buffers of constant size, to the same bits.
#include "memory/store.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <map>
#include <numeric>
#include <tuple>

#include "late_store.h"
#include "memory/staged_pass.h"

namespace zero::test::store_test {

using Booked = std::map<std::tuple<Owner, int, Tier>, std::int64_t>;

Store::Book into(Booked& booked) {
  return [&booked](Owner owner, int unit, Tier tier, std::int64_t bytes) { booked[{owner, unit, tier}] += bytes; };
}

std::unique_ptr<Block::Place> from_malloc(std::size_t bytes) {
  return in_memory({std::malloc(bytes), std::free});
}

std::vector<int> counted(std::size_t count, int first = 0) {
  std::vector<int> numbers(count);
  std::iota(numbers.begin(), numbers.end(), first);
  return numbers;
}

template <class T>
auto view(std::vector<T>& values) {
  return View{values.data(), static_cast<std::int64_t>(values.size()), Dtype::i32};
}

std::vector<int> all_of(const Block& block) {
  std::vector<int> values(static_cast<std::size_t>(block.bytes()) / sizeof(int));
  block.read(0, view(values)).wait();
  return values;
}

// Both kinds of store.
class Stores : public testing::TestWithParam<bool> {
 protected:
  bool addressable() const { return GetParam(); }
  Tier tier() const { return addressable() ? Tier::device : Tier::disk; }
  std::unique_ptr<Store> store() {
    if (addressable()) return std::make_unique<AddressableStore>(Tier::device, from_malloc, into(booked_));
    return std::make_unique<LateStore>(into(booked_), watch_);
  }
  void TearDown() override {
    EXPECT_EQ(watch_->faults, "");
    EXPECT_EQ(watch_->under_way, 0);
    for (const auto& [whose, bytes] : booked_) EXPECT_EQ(bytes, 0);
  }

  Booked booked_;
  std::shared_ptr<LateWatch> watch_ = std::make_shared<LateWatch>();
};

INSTANTIATE_TEST_SUITE_P(All, Stores, testing::Bool(),
                         [](const auto& tested) { return tested.param ? "InMemory" : "OutOfReach"; });

TEST_P(Stores, KeepWhatIsWrittenToTheirBlocks) {
  const auto of = store();
  Block block = of->take(40, Owner::optimizer);
  std::vector<int> first = counted(10), middle = counted(3, 100);
  block.write(0, view(first)).wait();
  block.write(16, view(middle)).wait();
  EXPECT_EQ(all_of(block), (std::vector{0, 1, 2, 3, 100, 101, 102, 7, 8, 9}));
  std::vector<int> part(4);
  block.read(20, view(part)).wait();
  EXPECT_EQ(part, (std::vector{101, 102, 7, 8}));
  EXPECT_EQ(block.addressable(), addressable());
}

TEST_P(Stores, BookTheirBlocksAsLongAsTheyLive) {
  const auto of = store();
  Block a = of->take(40, Owner::optimizer, 3), b = of->take(8, Owner::optimizer, 3), c = of->take(5, Owner::gradient);
  EXPECT_EQ((booked_[{Owner::optimizer, 3, tier()}]), 48);
  EXPECT_EQ((booked_[{Owner::gradient, -1, tier()}]), 5);
  Block moved = std::move(a);
  EXPECT_FALSE(a);          // NOLINT: what is left of it
  EXPECT_EQ(a.bytes(), 0);  // NOLINT: likewise
  EXPECT_EQ((booked_[{Owner::optimizer, 3, tier()}]), 48);
  b = std::move(moved);
  EXPECT_EQ((booked_[{Owner::optimizer, 3, tier()}]), 40);
  b.reset();
  EXPECT_EQ((booked_[{Owner::optimizer, 3, tier()}]), 0);
}

TEST_P(Stores, RefuseBytesThatABlockHasNot) {
  const auto of = store();
  Block block = of->take(40, Owner::optimizer), none = of->take(0, Owner::optimizer);
  std::vector<int> values(3);
  const auto beyond = [&](Block& of_block, std::int64_t at) {
    EXPECT_THROW(of_block.read(at, view(values)), StoreError);
    EXPECT_THROW(of_block.write(at, view(values)), StoreError);
  };
  beyond(block, 32);
  beyond(block, -4);
  beyond(block, std::numeric_limits<std::int64_t>::max());
  beyond(none, 0);
  Block never;
  beyond(never, 0);
  EXPECT_THROW(of->take(-1, Owner::optimizer), StoreError);
  EXPECT_TRUE(none);
  EXPECT_TRUE(none.addressable());
  std::vector<int> nothing;
  none.read(0, view(nothing)).wait();
}

TEST(LateStores, ShowAWaitThatIsForgotten) {
  const auto watch = std::make_shared<LateWatch>();
  Booked booked;
  LateStore store(into(booked), watch);
  Block block = store.take(8, Owner::optimizer);
  std::vector<int> written = counted(2, 5), read(2);
  Pending write = block.write(0, view(written));
  written[1] = 9;  // too early
  write.wait();
  Pending pending = block.read(0, view(read));
  EXPECT_EQ(read, (std::vector{0x5a5a5a5a, 0x5a5a5a5a}));
  pending.wait();
  EXPECT_EQ(read, (std::vector{5, 9}));
  Pending again = block.read(0, view(read)), over = block.write(4, {written.data(), 1, Dtype::i32});
  EXPECT_EQ(watch->faults, "operations under way overlap\n");
  again.wait();
  over.wait();
}

// Adds twice the second block's numbers to the first's, `count` of them, `step` at a time.
void add(StagedPass& passage, Block& sums, Block& addends, std::int64_t count, std::int64_t step) {
  for (std::int64_t begin = 0; begin < count; begin += step) {
    const std::int64_t n = std::min(step, count - begin);
    const std::array parts{BlockPart{&sums, begin * 4, n * 4}, BlockPart{}, BlockPart{&addends, begin * 4, n * 4}};
    passage.pass(parts, [n](std::span<void* const> arrays) {
      EXPECT_EQ(arrays[1], nullptr);
      auto* const to = static_cast<std::uint32_t*>(arrays[0]);
      const auto* const from = static_cast<const std::uint32_t*>(arrays[2]);
      for (std::int64_t i = 0; i < n; ++i) to[i] += 2 * from[i];
    });
  }
}

TEST_P(Stores, AreUpdatedByPassages) {
  const auto of = store();
  AddressableStore memory(Tier::device, from_malloc, into(booked_));
  Staging staging(memory, {LateStore::kTransfer});
  EXPECT_EQ(staging.shape().elements(), 256);
  for (const std::int64_t count : {1, 255, 256, 257, 700, 5000}) {
    const auto size = static_cast<std::size_t>(count);
    Block sums = of->take(count * 4, Owner::optimizer), addends = of->take(count * 4, Owner::optimizer);
    std::vector<int> a = counted(size, 7), b = counted(size, 1000);
    sums.write(0, view(a)).wait();
    addends.write(0, view(b)).wait();
    const std::int64_t before = watch_->operations;
    StagedPass passage(staging);
    add(passage, sums, addends, count, staging.shape().elements());
    passage.finish();
    const std::int64_t stretches = (count + 255) / 256;
    EXPECT_EQ(watch_->operations - before, addressable() ? 0 : 4 * stretches);
    for (std::size_t i = 0; i < size; ++i) a[i] += 2 * b[i];
    EXPECT_EQ(all_of(sums), a);
    EXPECT_EQ(all_of(addends), b);
  }
  // Three stretches of two arrays of 256 numbers, whatever the blocks' size.
  EXPECT_LE(watch_->most, 5000 * 4);
  EXPECT_EQ((booked_[{Owner::update, -1, Tier::device}]), addressable() ? 0 : 3 * staging.shape().allocated());
}

TEST(Passages, HaveAConstantNumberOfBytesUnderWay) {
  Booked booked;
  AddressableStore memory(Tier::device, from_malloc, into(booked));
  std::vector<std::int64_t> most;
  for (const std::int64_t count : {2000, 40000}) {
    const auto watch = std::make_shared<LateWatch>();
    LateStore store(into(booked), watch);
    Staging staging(memory, staging_for(store));
    Block sums = store.take(count * 4, Owner::optimizer), addends = store.take(count * 4, Owner::optimizer);
    StagedPass passage(staging);
    add(passage, sums, addends, count, staging.shape().elements());
    passage.finish();
    most.push_back(watch->most);
    EXPECT_EQ((booked[{Owner::update, -1, Tier::device}]), 3 * staging.shape().allocated());
  }
  EXPECT_EQ(most[0], most[1]);
  EXPECT_LE(most[0], 3 * 2 * 256 * 4);
  EXPECT_GT(most[0], 2 * 2 * 256 * 4 - 1);  // while one stretch is worked on, another is under way
}

TEST(Passages, AreInPlaceWhereBlocksAreAddressable) {
  Booked booked;
  AddressableStore memory(Tier::device, from_malloc, into(booked));
  Staging staging(memory, {LateStore::kTransfer});
  Block block = memory.take(1 << 16, Owner::optimizer);
  const BlockPart part{&block, 64, 60000};  // more than a buffer has room for
  StagedPass passage(staging);
  void* place = nullptr;
  passage.pass({&part, 1}, [&](std::span<void* const> arrays) { place = arrays[0]; });
  EXPECT_EQ(place, static_cast<char*>(block.view().data) + 64);
}

TEST(Passages, BringOrTakeBackOnlyWhatIsAsked) {
  const auto watch = std::make_shared<LateWatch>();
  Booked booked;
  AddressableStore memory(Tier::device, from_malloc, into(booked));
  LateStore store(into(booked), watch);
  Staging staging(memory, staging_for(store));
  Block block = store.take(4096, Owner::optimizer);
  const auto run = [&](Access way, int value) {
    const std::int64_t before = watch->operations;
    StagedPass passage(staging);
    const BlockPart part{&block, 0, 1024, way};
    passage.pass({&part, 1}, [&](std::span<void* const> arrays) { std::memset(arrays[0], value, 1024); });
    passage.finish();
    return watch->operations - before;
  };
  EXPECT_EQ(run(Access::write, 1), 1);
  EXPECT_EQ(all_of(block).front(), 0x01010101);
  EXPECT_EQ(run(Access::read, 2), 1);
  EXPECT_EQ(all_of(block).front(), 0x01010101);
  EXPECT_EQ(run(Access::update, 3), 2);
  EXPECT_EQ(all_of(block).front(), 0x03030303);
  EXPECT_EQ(all_of(block).back(), 0x33333333);
}

TEST(Passages, RefuseWhatABufferHasNoRoomFor) {
  Booked booked;
  AddressableStore memory(Tier::device, from_malloc, into(booked));
  LateStore store(into(booked), std::make_shared<LateWatch>());
  Staging staging(memory, staging_for(store));
  Block block = store.take(1 << 20, Owner::optimizer);
  const BlockPart part{&block, 0, staging.shape().allocated() + 1};
  StagedPass passage(staging);
  EXPECT_THROW(passage.pass({&part, 1}, [](std::span<void* const>) {}), StoreError);
}

// Three times as many numbers as there are of one, each of so many elements, lie side by side in a block.
struct Small {
  Small(Store& of, std::vector<std::int64_t> elements) : counts(std::move(elements)) {
    const auto all = static_cast<std::size_t>(std::accumulate(counts.begin(), counts.end(), std::int64_t{0}));
    sums = of.take(static_cast<std::int64_t>(all) * 4, Owner::optimizer);
    addends = of.take(static_cast<std::int64_t>(all) * 4, Owner::optimizer);
    a = counted(all, 7);
    b = counted(all, 1000);
    sums.write(0, view(a)).wait();
    addends.write(0, view(b)).wait();
  }
  // Adds them, part by part.
  void add_to(StagedPass& passage, std::vector<int>& done) {
    std::int64_t begin = 0;
    for (std::size_t i = 0; i < counts.size(); begin += counts[i++]) {
      const std::int64_t n = counts[i];
      const std::array parts{BlockPart{&sums, begin * 4, n * 4}, BlockPart{},
                             BlockPart{&addends, begin * 4, n * 4, Access::read}};
      passage.pass(parts, [n](std::span<void* const> arrays) {
        for (std::int64_t k = 0; k < n; ++k)
          static_cast<std::uint32_t*>(arrays[0])[k] += static_cast<const std::uint32_t*>(arrays[2])[k];
      });
      passage.then([i, &done] { done.push_back(static_cast<int>(i)); });
    }
  }
  void expect_added() {
    for (std::size_t i = 0; i < a.size(); ++i) a[i] += b[i];
    EXPECT_EQ(all_of(sums), a);
    EXPECT_EQ(all_of(addends), b);
  }

  std::vector<std::int64_t> counts;
  Block sums, addends;
  std::vector<int> a, b;
};

// Of a store with pages or without: a read of each block and a write of one for a buffer full of parts.
TEST(Passages, JoinWhatLiesSideBySide) {
  for (const std::int64_t page : {1, 256}) {
    Booked booked;
    const auto watch = std::make_shared<LateWatch>();
    AddressableStore memory(Tier::device, from_malloc, into(booked));
    LateStore store(into(booked), watch);
    Staging staging(memory, {LateStore::kTransfer, StagingShape::kArrays, page});
    std::vector<std::int64_t> counts(100, 8);  // what a buffer has room for
    counts.insert(counts.end(), {3, 250, 1, 700, 5, 5});
    Small small(store, counts);
    std::vector<int> done;
    const std::int64_t before = watch->operations;
    StagedPass passage(staging, StagedPass::Turns::joined);
    small.add_to(passage, done);
    EXPECT_LT(done.size(), counts.size());
    passage.finish();
    EXPECT_EQ(done, counted(counts.size()));
    // 8192 bytes are two buffers' worth at least.
    EXPECT_EQ((watch->operations - before) % 3, 0);
    EXPECT_LE(watch->operations - before, 3 * 3);
    EXPECT_EQ(watch->faults, "");
    EXPECT_EQ(watch->under_way, 0);
    small.expect_added();
  }
}

// What lies apart is brought in operations of its own, together.
TEST(Passages, JoinBlocksInOneTurn) {
  Booked booked;
  const auto watch = std::make_shared<LateWatch>();
  AddressableStore memory(Tier::device, from_malloc, into(booked));
  LateStore store(into(booked), watch);
  Staging staging(memory, staging_for(store));
  Small first(store, {16, 16}), second(store, {40});
  std::vector<int> done;
  const std::int64_t before = watch->operations;
  StagedPass passage(staging, StagedPass::Turns::joined);
  first.add_to(passage, done);
  second.add_to(passage, done);
  EXPECT_EQ(watch->operations, before);  // all of it waits for more
  EXPECT_TRUE(done.empty());
  passage.finish();
  EXPECT_EQ(done, (std::vector{0, 1, 0}));
  EXPECT_EQ(watch->operations - before, 2 * 3);
  EXPECT_EQ((booked[{Owner::update, -1, Tier::device}]), staging.shape().allocated());
  first.expect_added();
  second.expect_added();
}

// Whichever operation fails, it is told of, nothing stays under way, and the buffers serve the next passage.
TEST(Passages, TellOfEveryFailure) {
  Booked booked;
  AddressableStore memory(Tier::device, from_malloc, into(booked));
  const auto watch = std::make_shared<LateWatch>();
  LateStore store(into(booked), watch);
  Staging staging(memory, staging_for(store));
  constexpr std::int64_t kCount = 1500;
  int failures = 0;
  for (bool done = false; !done; ++failures) {
    Block sums = store.take(kCount * 4, Owner::optimizer), addends = store.take(kCount * 4, Owner::optimizer);
    std::vector<int> numbers = counted(kCount);
    sums.write(0, view(numbers)).wait();
    addends.write(0, view(numbers)).wait();
    watch->fails_at = failures;
    try {
      StagedPass passage(staging);
      add(passage, sums, addends, kCount, staging.shape().elements());
      passage.finish();
      done = true;
    } catch (const StoreError& error) {
      EXPECT_NE(std::string(error.what()).find("the late store failed to"), std::string::npos);
    }
    watch->fails_at = -1;
    EXPECT_EQ(watch->under_way, 0);
  }
  EXPECT_EQ(failures - 1, 4 * 6);
  EXPECT_EQ(watch->faults, "");
}

TEST(Passages, EndWithTheWorksException) {
  Booked booked;
  AddressableStore memory(Tier::device, from_malloc, into(booked));
  const auto watch = std::make_shared<LateWatch>();
  LateStore store(into(booked), watch);
  Staging staging(memory, staging_for(store));
  Block block = store.take(4096, Owner::optimizer);
  int done = 0;
  const auto run = [&] {
    StagedPass passage(staging);
    for (std::int64_t at = 0; at < 4096; at += 1024) {
      const BlockPart part{&block, at, 1024};
      passage.pass({&part, 1}, [&](std::span<void* const>) {
        if (++done == 2) throw std::runtime_error("the work failed");
      });
    }
    passage.finish();
  };
  EXPECT_THROW(run(), std::runtime_error);
  EXPECT_EQ(done, 2);
  EXPECT_EQ(watch->under_way, 0);
}

// What an engine that is built on this thread gets.
TEST(StoresOfEngines, CanBeReplaced) {
  Booked booked;
  AddressableStore memory(Tier::device, from_malloc, into(booked));
  const DiskOptions options;
  EXPECT_TRUE(make_store(State::optimizer, Tier::device, from_malloc, into(booked), {memory, options})->addressable());
  replace_stores([](State state, Store::Book book) -> std::unique_ptr<Store> {
    if (state != State::optimizer) return nullptr;
    return std::make_unique<LateStore>(std::move(book), std::make_shared<LateWatch>());
  });
  EXPECT_FALSE(make_store(State::optimizer, Tier::device, from_malloc, into(booked), {memory, options})->addressable());
  EXPECT_TRUE(make_store(State::gradient, Tier::device, from_malloc, into(booked), {memory, options})->addressable());
  replace_stores(nullptr);
  EXPECT_TRUE(make_store(State::optimizer, Tier::device, from_malloc, into(booked), {memory, options})->addressable());
}

}  // namespace zero::test::store_test
