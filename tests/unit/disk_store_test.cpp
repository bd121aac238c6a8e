// The store on disks: what is written is read, whatever its bytes, place and memory, by any thread; nothing is left.
#include "memory/disk_store.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <random>
#include <thread>

#include "faulty_disks.h"
#include "memory/staged_pass.h"

namespace zero::test::disk_store_test {

struct Kept {
  DiskQueueKind queue;
  int directories;
  bool direct, checks;
};

std::vector<Kept> all_kinds() {
  std::vector<Kept> kinds;
  for (const DiskQueueKind queue : disk_queues())
    for (const int directories : {1, 3})
      for (const bool direct : {true, false})
        for (const bool checks : {false, true}) kinds.push_back({queue, directories, direct, checks});
  return kinds;
}

std::string text_of(const testing::TestParamInfo<Kept>& info) {
  const Kept& kept = info.param;
  return name_of(kept.queue) + (kept.directories > 1 ? "Striped" : "") + (kept.direct ? "" : "Cached") +
         (kept.checks ? "Checked" : "");
}

class Disks : public testing::TestWithParam<Kept> {
 protected:
  std::unique_ptr<DiskStore> store() {
    DiskOptions options = on_.options(GetParam().queue, GetParam().directories);
    options.direct = GetParam().direct;
    options.checks = GetParam().checks;
    return on_.store(options);
  }

  OnDisks on_;
};

INSTANTIATE_TEST_SUITE_P(All, Disks, testing::ValuesIn(all_kinds()), text_of);

// A block and what it holds.
class Modelled {
 public:
  Modelled(Store& store, std::int64_t bytes, unsigned seed)
      : random_(seed),
        block_(store.take(bytes, Owner::optimizer, static_cast<int>(seed))),
        model_(letters(bytes, seed)) {
    Bytes all(bytes, 1);
    block_.write(0, all.filled(model_).view()).wait();
  }

  // Cuts a part of the block at random places; each piece is read or written or left, all at once.
  void work() {
    std::vector<std::int64_t> cuts;
    for (int i = 0; i < 8; ++i) cuts.push_back(below(block_.bytes() + 1));
    std::ranges::sort(cuts);
    std::vector<Operation> all;
    for (std::size_t i = 1; i < cuts.size(); ++i) begin(all, cuts[i - 1], cuts[i] - cuts[i - 1]);
    for (Operation& each : all) {
      each.pending.wait();
      EXPECT_TRUE(each.writes || each.bytes->text() == part(each.at, each.count)) << each.at << " + " << each.count;
    }
  }
  void expect_all() const { ASSERT_TRUE(all_of(block_) == model_); }

 private:
  struct Operation {
    std::int64_t at, count;
    bool writes;
    std::unique_ptr<Bytes> bytes;
    Pending pending;
  };

  std::int64_t below(std::int64_t count) { return std::uniform_int_distribution<std::int64_t>(0, count - 1)(random_); }
  std::string part(std::int64_t at, std::int64_t count) const {
    return model_.substr(static_cast<std::size_t>(at), static_cast<std::size_t>(count));
  }
  // Now and then on pages.
  void begin(std::vector<Operation>& all, std::int64_t at, std::int64_t count) {
    if (below(4) == 0) {
      const std::int64_t first = (at + kDiskPage - 1) / kDiskPage * kDiskPage;
      count = std::max<std::int64_t>(at + count - first, 0) / kDiskPage * kDiskPage;
      at = first;
    }
    if (count == 0 || at + count > block_.bytes()) return;
    Operation next{at, count, below(2) == 0, std::make_unique<Bytes>(count, below(3) * 32), {}};
    if (next.writes) {
      const std::string text = letters(count, static_cast<unsigned>(below(1 << 20)));
      model_.replace(static_cast<std::size_t>(at), text.size(), text);
      next.pending = block_.write(at, next.bytes->filled(text).view());
    } else {
      next.pending = block_.read(at, next.bytes->view());
    }
    all.push_back(std::move(next));
  }

  std::minstd_rand random_;
  Block block_;
  std::string model_;
};

// Blocks come and go while others are read and written, of sizes from a byte to many operations.
TEST_P(Disks, KeepWhatThreadsWrite) {
  const auto of = store();
  std::vector<std::thread> threads;
  for (unsigned thread = 0; thread < 3; ++thread)
    threads.emplace_back([&of, thread] {
      for (const std::int64_t bytes : {1L, 4095L, 4096L, 5000L, 8 * OnDisks::kBlock, 9 * OnDisks::kBlock + 777}) {
        Modelled block(*of, bytes, thread), other(*of, bytes / 2 + 1, thread + 10);
        for (int i = 0; i < 6; ++i) block.work(), other.work();
        block.expect_all();
        other.expect_all();
      }
    });
  for (std::thread& thread : threads) thread.join();
}

TEST_P(Disks, BookBuffersAndChecksInMemory) {
  const Kept& kept = GetParam();
  const auto buffers = [&] { return on_.booked(Owner::update, -1, Tier::device); };
  auto of = store();
  EXPECT_EQ(buffers(), OnDisks::kBlock * OnDisks::kDepth * kept.directories + kDiskPage);
  {
    Modelled large(*of, 100 * OnDisks::kBlock + 1, 7);
    large.work();
    EXPECT_EQ(on_.booked(Owner::optimizer, 7, Tier::disk), 100 * OnDisks::kBlock + 1);
    EXPECT_EQ(on_.booked(Owner::optimizer, 7, Tier::device), kept.checks ? 8 * 401 : 0);
    EXPECT_EQ(buffers(), OnDisks::kBlock * OnDisks::kDepth * kept.directories + kDiskPage);
  }
  EXPECT_EQ(on_.booked(Owner::optimizer, 7, Tier::device), 0);
  EXPECT_EQ(on_.booked(Owner::optimizer, 7, Tier::disk), 0);
  of.reset();
  EXPECT_EQ(buffers(), 0);
}

TEST_P(Disks, CopyNothingThatLiesOnPages) {
  const auto of = store();
  const std::int64_t bytes = 3 * OnDisks::kBlock;
  Block block = of->take(bytes, Owner::optimizer);
  Bytes on_pages(bytes, 0), off_pages(bytes, 32);
  std::int64_t copied = 0;
  const auto counts = [&](Bytes& memory) {
    return [&copied, &memory](const DiskTransfer& transfer, std::int64_t result) {
      copied += transfer.memory < memory.data() || transfer.memory >= memory.data() + bytes;
      return result;
    };
  };
  on_.system.on_result = counts(on_pages);
  block.write(0, on_pages.view()).wait();
  block.read(0, on_pages.view()).wait();
  EXPECT_EQ(copied, 0);
  on_.system.on_result = counts(off_pages);
  block.write(0, off_pages.view()).wait();
  EXPECT_EQ(copied, GetParam().direct ? 3 : 0);
}

// And no page is read before it is written that is the block's own.
TEST_P(Disks, CutOperationsNoMoreThanTheyMust) {
  const auto of = store();
  Block before = of->take(5000, Owner::optimizer), block = of->take(3 * OnDisks::kBlock + 100, Owner::optimizer);
  Bytes all(block.bytes(), 0);
  on_.system.transferred = 0;
  block.write(0, all.view()).wait();
  EXPECT_EQ(on_.system.transferred, 4);
}

// As the optimizer uses them: stretches that share pages are read, updated and written at the same time.
TEST_P(Disks, AreUpdatedByPassages) {
  const auto of = store();
  constexpr std::int64_t count = 30'000;
  Block sums = of->take(4 * count + 4, Owner::optimizer), addends = of->take(4 * count, Owner::optimizer);
  std::vector<int> numbers(count);
  std::iota(numbers.begin(), numbers.end(), 1);
  const View all{numbers.data(), count, Dtype::i32};
  sums.write(4, all).wait();
  addends.write(0, all).wait();
  Staging staging(on_.memory, staging_for(*of));
  const auto parts = [&](std::int64_t first, std::int64_t some) {
    return std::vector{BlockPart{&sums, 4 + 4 * first, 4 * some},
                       BlockPart{&addends, 4 * first, 4 * some, Access::read}};
  };
  for (int i = 0; i < 3; ++i)
    each_stretch(staging, count, parts, [](std::span<void* const> arrays, std::int64_t, std::int64_t some) {
      for (std::int64_t k = 0; k < some; ++k) static_cast<int*>(arrays[0])[k] += static_cast<int*>(arrays[1])[k];
    });
  sums.read(4, all).wait();
  for (std::int64_t i = 0; i < count; ++i) ASSERT_EQ(numbers[static_cast<std::size_t>(i)], 4 * (i + 1));
}

TEST_P(Disks, UseAgainWhatBlocksGaveBack) {
  const auto of = store();
  for (int i = 0; i < 5; ++i) {
    Modelled a(*of, 4 * OnDisks::kBlock, 1), b(*of, 1000, 2), c(*of, 2 * OnDisks::kBlock, 3);
    b.expect_all();
  }
  EXPECT_LE(on_.system.largest, 8 * OnDisks::kBlock);
}

TEST_P(Disks, RefuseBytesThatABlockHasNot) {
  const auto of = store();
  Block block = of->take(40, Owner::optimizer), none = of->take(0, Owner::optimizer);
  Bytes bytes(12, 0);
  EXPECT_THROW(block.read(29, bytes.view()), StoreError);
  EXPECT_THROW(block.write(-1, bytes.view()), StoreError);
  EXPECT_THROW(none.read(0, bytes.view()), StoreError);
  EXPECT_FALSE(block.addressable());
  EXPECT_TRUE(none.addressable());
}

bool is_empty(const std::string& folder) {
  return std::filesystem::is_empty(folder);
}

// Where the file system has files without a name, and where it has none.
class Traces : public testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(All, Traces, testing::Bool(),
                         [](const auto& tested) { return tested.param ? "Unlinked" : "WithoutAName"; });

TEST_P(Traces, AreNone) {
  OnDisks on;
  int opened = 0;
  on.system.on_open = [&](const std::string&, int flags) {
    ++opened;
    return GetParam() && (flags & O_TMPFILE) == O_TMPFILE ? -EOPNOTSUPP : 0;
  };
  auto of = on.store(on.options(DiskQueueKind::threads));
  Modelled block(*of, 10000, 1);
  block.work();
  EXPECT_EQ(opened, GetParam() ? 2 : 1);
  EXPECT_TRUE(is_empty(on.folder()));
}

TEST_P(Traces, AreNoneOfAProcessThatIsKilled) {
  OnDisks on;
  on.system.on_open = [](const std::string&, int flags) {
    return GetParam() && (flags & O_TMPFILE) == O_TMPFILE ? -EOPNOTSUPP : 0;
  };
  const DiskOptions options = on.options(DiskQueueKind::automatic);
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const auto of = on.store(options);
    Modelled block(*of, 100000, 1);
    static_cast<void>(::write(ends[1], "x", 1));
    for (;;) block.work();
  }
  char byte = 0;
  EXPECT_EQ(::read(ends[0], &byte, 1), 1);
  EXPECT_TRUE(is_empty(on.folder()));
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  EXPECT_TRUE(is_empty(on.folder()));
  ::close(ends[0]);
  ::close(ends[1]);
}

TEST(DiskStores, TakeIoUringWhereItIs) {
  OnDisks on;
  const auto of = on.store(on.options(DiskQueueKind::automatic));
  EXPECT_EQ(of->queue(), disk_queues().size() > 1 ? "io_uring" : "threads");
  EXPECT_EQ(of->describe(), "disk: '" + on.folder() + "'" + (of->direct() ? "" : " (through the page cache)") + "; " +
                                std::string(of->queue()) + "; operations of 16384 bytes, 3 at once");
}

// Of the thread that calls it, and of those that it starts.
void forbid_io_uring(int error) {
  const sock_filter filter[] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
                                BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_setup, 0, 1),
                                BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | static_cast<unsigned>(error)),
                                BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
  const sock_fprog program{std::size(filter), const_cast<sock_filter*>(filter)};
  ASSERT_EQ(::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
  ASSERT_EQ(::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program), 0);
}

TEST(DiskStores, TakeThreadsWhereIoUringIsForbidden) {
  for (const int error : {ENOSYS, EPERM, EACCES, ENOMEM})
    std::thread([error] {
      forbid_io_uring(error);
      OnDisks on;
      DiskOptions options = on.options(DiskQueueKind::automatic);
      const auto of = on.store(options);
      EXPECT_EQ(of->queue(), "threads");
      Modelled block(*of, 50'000, 1);
      block.work();
      block.expect_all();
      options.queue = DiskQueueKind::io_uring;
      EXPECT_THROW(on.store(options), ConfigError);
    }).join();
}

TEST(DiskStores, MeasureTheSizeOfOperations) {
  for (const DiskQueueKind queue : disk_queues()) {
    OnDisks on;
    DiskOptions options = on.options(queue, 2);
    options.block = options.depth = 0;
    const auto of = on.store(options);
    EXPECT_EQ(of->block() * of->depth(), 8 << 20);
    EXPECT_GE(of->block(), 1 << 18);
    EXPECT_LE(of->block(), 1 << 20);
    EXPECT_EQ(of->transfer(), 2 << 20);
    Modelled block(*of, 3'000'001, 4);
    block.work();
    block.expect_all();
  }
}

TEST(DiskStores, RefuseWhatCannotWork) {
  OnDisks on;
  const DiskOptions good = on.options(DiskQueueKind::threads);
  const auto refused = [&](const std::function<void(DiskOptions&)>& change, const std::string& says) {
    DiskOptions options = good;
    change(options);
    try {
      on.store(options);
      ADD_FAILURE() << says;
    } catch (const ConfigError& error) {
      EXPECT_NE(std::string(error.what()).find(says), std::string::npos) << error.what();
    }
  };
  refused([](DiskOptions& options) { options.directories.clear(); }, "without a directory");
  refused([](DiskOptions& options) { options.block = 5000; }, "a block of 5000 bytes");
  refused([](DiskOptions& options) { options.block = -4096; }, "a block of -4096 bytes");
  refused([](DiskOptions& options) { options.depth = -1; }, "-1 operations under way");
  refused([](DiskOptions& options) { options.directories.emplace_back("/nowhere"); },
          "cannot keep a file in '/nowhere': No such file or directory");
  refused([](DiskOptions& options) { options.directories.emplace_back("/dev/null"); }, "Not a directory");
}

TEST(DiskSpaces, GiveNobodyWhatOthersHave) {
  DiskSpace space;
  std::minstd_rand random(5);
  std::vector<std::pair<std::int64_t, std::int64_t>> taken;
  std::int64_t end = 0, largest = 0, held = 0;
  for (int i = 0; i < 3000; ++i) {
    if (!taken.empty() && random() % 2 == 0) {
      const auto which = taken.begin() + static_cast<std::ptrdiff_t>(random() % taken.size());
      space.give(which->first, which->second);
      held -= which->second;
      taken.erase(which);
      continue;
    }
    const std::int64_t bytes = 1 + static_cast<std::int64_t>(random() % 64), alignment = random() % 2 == 0 ? 1 : 32;
    if (random() % 8 == 0) {
      EXPECT_THROW(space.take(10000, 1, [](std::int64_t) { throw StoreError("full"); }), StoreError);
    }
    const std::int64_t at = space.take(bytes, alignment, [&](std::int64_t to) { end = std::max(end, to); });
    EXPECT_EQ(at % alignment, 0);
    EXPECT_LE(at + bytes, end);
    for (const auto& [begin, size] : taken) EXPECT_TRUE(at + bytes <= begin || begin + size <= at);
    taken.emplace_back(at, bytes);
    held += bytes;
    largest = std::max(largest, held);
  }
  EXPECT_LE(end, 3 * largest);
  for (const auto& [begin, size] : taken) space.give(begin, size);
  EXPECT_EQ(space.take(end, 1, [](std::int64_t) { FAIL(); }), 0);
}

}  // namespace zero::test::disk_store_test
