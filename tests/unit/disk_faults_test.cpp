// Disks that fail: whatever happens, one error that says what, where and whose, nothing hangs, and the store goes on.
#include <fcntl.h>
#include <gtest/gtest.h>

#include <condition_variable>
#include <future>
#include <mutex>
#include <optional>
#include <thread>

#include "faulty_disks.h"

namespace zero::test::disk_faults_test {

struct Faulty {
  DiskQueueKind queue;
  bool direct;
};

std::vector<Faulty> all_kinds() {
  std::vector<Faulty> kinds;
  for (const DiskQueueKind queue : disk_queues())
    for (const bool direct : {true, false}) kinds.push_back({queue, direct});
  return kinds;
}

std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const StoreError& error) {
    return error.what();
  }
  return "no error";
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

class DiskFaults : public testing::TestWithParam<Faulty> {
 protected:
  std::unique_ptr<DiskStore> store(bool checks = false) {
    DiskOptions options = on_.options(GetParam().queue);
    options.direct = GetParam().direct;
    options.checks = checks;
    return on_.store(options);
  }
  FaultyDisks& system() { return on_.system; }
  std::string file() const { return "of the file without a name in '" + on_.folder() + "'"; }

  static constexpr std::int64_t kBytes = 3 * OnDisks::kBlock + 500;
  // Writes and reads a block whole, then from within a page to within another, in pieces under way together.
  static void use(Block& block) {
    const std::string text = letters(block.bytes(), 1);
    Bytes all(block.bytes(), 0), part(2 * OnDisks::kBlock, 32);
    block.write(0, all.filled(text).view()).wait();
    ASSERT_TRUE(all_of(block) == text);
    block.write(1000, part.filled(text).view()).wait();
    block.read(2000, part.view()).wait();
    ASSERT_TRUE(part.text() ==
                text.substr(1000, 2 * OnDisks::kBlock - 1000) + text.substr(2 * OnDisks::kBlock + 1000, 1000));
  }

  OnDisks on_;
};

INSTANTIATE_TEST_SUITE_P(All, DiskFaults, testing::ValuesIn(all_kinds()), [](const auto& tested) {
  return name_of(tested.param.queue) + (tested.param.direct ? "" : "Cached");
});

// Whichever part of a transfer it is; then blocks end, and others come.
TEST_P(DiskFaults, OfAnyTransferAreOneErrorThatSaysWhere) {
  const auto of = store();
  int failures = 0;
  for (bool failed = true; failed; ++failures) {
    std::int64_t left = failures;
    std::string where;
    system().on_result = [&](const DiskTransfer& transfer, std::int64_t result) -> std::int64_t {
      if (left-- != 0) return result;
      where = std::string("cannot ") + (transfer.writes ? "write " : "read ") + std::to_string(transfer.bytes) +
              " bytes at offset " + std::to_string(transfer.at) + " " + file() + ": Input/output error";
      return -EIO;
    };
    Block block = of->take(kBytes, Owner::optimizer, 3);
    const std::string error = error_of([&] { use(block); });
    failed = error != "no error";
    EXPECT_EQ(failed, !where.empty());
    EXPECT_TRUE(!failed || has(error, "optimizer of unit 3: " + where)) << error;
  }
  EXPECT_GT(failures, 12);
  system().on_result = nullptr;
  Block block = of->take(kBytes, Owner::optimizer, 3);
  use(block);
}

TEST_P(DiskFaults, AreWaitedForAsOftenAsOneLikes) {
  const auto of = store();
  Block block = of->take(kBytes, Owner::optimizer);
  system().on_result = [](const DiskTransfer&, std::int64_t) { return -ENOSPC; };
  Bytes from(2 * OnDisks::kBlock, 0), to(OnDisks::kBlock, 0);
  Pending first = block.write(0, from.view()), second = block.read(2 * OnDisks::kBlock, to.view());
  const std::string error = error_of([&] { first.wait(); });
  EXPECT_TRUE(has(error, "optimizer: cannot write ")) << error;
  EXPECT_TRUE(has(error, "No space left on device (free space there")) << error;
  EXPECT_EQ(error_of([&] { first.wait(); }), error);
  EXPECT_TRUE(has(error_of([&] { second.wait(); }), "optimizer: cannot read "));
}

TEST_P(DiskFaults, ShortAndInterruptedTransfersGoOn) {
  const auto of = store();
  std::int64_t parts = 0;
  system().on_result = [&](const DiskTransfer&, std::int64_t result) -> std::int64_t {
    switch (++parts % 5) {
      case 0: return -EINTR;
      case 1: return -EAGAIN;
      case 2: return std::min<std::int64_t>(result, 100);
      case 3: return std::max<std::int64_t>(result - 5000, 1);
      default: return result;
    }
  };
  Block block = of->take(kBytes, Owner::optimizer);
  use(block);
  EXPECT_GT(parts, 30);
}

TEST_P(DiskFaults, ThatNeverEndAreErrors) {
  const auto of = store();
  Block block = of->take(kBytes, Owner::optimizer);
  Bytes bytes(kBytes, 0);
  for (const auto& [result, says] : {std::pair<std::int64_t, const char*>{-EINTR, "Interrupted system call"},
                                     {-EAGAIN, "Resource temporarily unavailable"},
                                     {1, "Input/output error"},
                                     {0, "Input/output error"}}) {
    system().on_result = [always = result](const DiskTransfer&, std::int64_t) { return always; };
    const std::string error = error_of([&] { block.write(0, bytes.view()).wait(); });
    EXPECT_TRUE(has(error, says)) << error;
  }
  const std::string error = error_of([&] { block.read(0, bytes.view()).wait(); });
  EXPECT_TRUE(has(error, ": it ends before")) << error;
}

// Nobody waits for a disk but who waits for its operation.
TEST_P(DiskFaults, SlowDisksAreWaitedForOnlyAtTheEnd) {
  const auto of = store();
  Block block = of->take(kBytes, Owner::optimizer);
  std::promise<void> go;
  const std::shared_future<void> gone = go.get_future();
  system().on_result = [&gone](const DiskTransfer&, std::int64_t result) {
    gone.wait();
    return result;
  };
  const std::string text = letters(kBytes, 2);
  Bytes bytes(kBytes, 0);
  Pending write = block.write(0, bytes.filled(text).view());
  EXPECT_FALSE(write.done());
  go.set_value();
  write.wait();
  EXPECT_TRUE(write.done());
  EXPECT_TRUE(all_of(block) == text);
}

// Of every byte of a block that holds pages written whole and in part, and whatever is read of it.
TEST_P(DiskFaults, AWrongByteIsFoundWhereItIs) {
  const auto of = store(/*checks=*/true);
  Block other = of->take(OnDisks::kBlock, Owner::gradient, 1), block = of->take(kBytes, Owner::optimizer, 3);
  use(block);
  const auto damaged = [&](std::int64_t at, const std::function<void()>& call) {
    const std::int64_t there = OnDisks::kBlock + at;
    system().on_result = [there](const DiskTransfer& transfer, std::int64_t result) {
      const bool has_it = there >= transfer.at && there < transfer.at + transfer.bytes;
      if (has_it && !transfer.writes) transfer.memory[there - transfer.at] ^= 1;
      return result;
    };
    std::string error = error_of(call);
    system().on_result = nullptr;
    if (error == "no error") return error;
    EXPECT_TRUE(has(error, "optimizer of unit 3: 4096 bytes at offset " +
                               std::to_string(there / kDiskPage * kDiskPage) + " " + file() +
                               " are not what was written"))
        << error;
    return std::string("found");
  };
  Bytes all(kBytes, 0), few(10, 1);
  for (const std::int64_t at : {std::int64_t{0}, std::int64_t{4095}, std::int64_t{30000}, kBytes - 1})
    EXPECT_EQ(damaged(at, [&] { block.read(0, all.view()).wait(); }), "found") << at;
  EXPECT_EQ(damaged(4200, [&] { block.read(4196, few.view()).wait(); }), "found");
  EXPECT_EQ(damaged(8191, [&] { block.read(4196, few.view()).wait(); }), "found");  // of its page
  EXPECT_EQ(damaged(8192, [&] { block.read(4196, few.view()).wait(); }), "no error");
  EXPECT_EQ(damaged(5000, [&] { block.write(4196, few.view()).wait(); }), "found");  // what it leaves of its page
  EXPECT_EQ(damaged(0, [&] { block.write(0, all.view()).wait(); }), "no error");
  use(block);
}

// A block that takes the place of another has no checks of what was there.
TEST_P(DiskFaults, WhatWasNeverWrittenIsNotChecked) {
  const auto of = store(/*checks=*/true);
  Bytes bytes(kBytes, 0);
  {
    Block block = of->take(kBytes, Owner::optimizer);
    use(block);
  }
  Block block = of->take(kBytes, Owner::optimizer);
  block.read(0, bytes.view()).wait();
  Bytes few(10, 0);
  block.write(5000, few.filled("0123456789").view()).wait();
  EXPECT_EQ(all_of(block).substr(5000, 10), "0123456789");
}

// Of either directory; what the other had reserved is given back.
TEST_P(DiskFaults, NoRoomIsAnErrorOfTheBlockThatIsTaken) {
  DiskOptions options = on_.options(GetParam().queue, 2);
  options.direct = GetParam().direct;
  const auto of = on_.store(options);
  Block small = of->take(kBytes, Owner::optimizer, 3);
  for (const int full : {0, 1}) {
    int allocations = 0;
    system().on_allocate = [&](std::int64_t) { return allocations++ == full ? -ENOSPC : 0; };
    const std::string error = error_of([&] { of->take(8 * OnDisks::kBlock, Owner::optimizer, 3); });
    EXPECT_TRUE(has(error, "no room for ")) << error;
    EXPECT_TRUE(has(error, " bytes in '" + on_.folder(full) + "': No space left on device, ")) << error;
    EXPECT_TRUE(has(error, " bytes are free (free space there")) << error;
    EXPECT_EQ(on_.booked(Owner::optimizer, 3, Tier::disk), kBytes);
  }
  system().on_allocate = [](std::int64_t) { return -EOPNOTSUPP; };
  const std::string error = error_of([&] { of->take(8 * OnDisks::kBlock, Owner::optimizer, 3); });
  EXPECT_TRUE(has(error, "its file system has no fallocate")) << error;
  system().on_allocate = nullptr;
  Block large = of->take(8 * OnDisks::kBlock, Owner::optimizer, 3);
  use(small);
  use(large);
}

// At the start: what a person can mend is told as that.
TEST_P(DiskFaults, FilesThatCannotBeMadeAreErrorsAtTheStart) {
  system().on_open = [](const std::string&, int) { return -EACCES; };
  EXPECT_THROW(store(), ConfigError);
  system().on_open = [](const std::string&, int) { return -EIO; };
  EXPECT_TRUE(has(error_of([&] { store(); }), "cannot keep a file in '" + on_.folder() + "': Input/output error"));
}

TEST_P(DiskFaults, WithoutRoomToMeasureTheSizeOfOperationsIsTheUsualOne) {
  DiskOptions options = on_.options(GetParam().queue);
  options.block = options.depth = 0;
  system().on_allocate = [](std::int64_t end) { return end > 1 << 20 ? -ENOSPC : 0; };
  const auto of = on_.store(options);
  EXPECT_EQ(of->block(), 1 << 20);
  Block block = of->take(kBytes, Owner::optimizer);
  use(block);
}

TEST_P(DiskFaults, ADiskThatFailsWhileItIsMeasuredIsAnError) {
  DiskOptions options = on_.options(GetParam().queue);
  options.block = 0;
  system().on_result = [&](const DiskTransfer& transfer, std::int64_t result) -> std::int64_t {
    return transfer.writes ? result : -EIO;
  };
  const std::string error = error_of([&] { on_.store(options); });
  EXPECT_TRUE(has(error, "measuring: cannot read 1048576 bytes at offset ")) << error;
  EXPECT_TRUE(has(error, file() + ": Input/output error")) << error;
}

class BrokenQueue final : public DiskQueue {
 public:
  explicit BrokenQueue(std::shared_future<void> when) : when_(std::move(when)) {}
  std::string_view name() const override { return "broken"; }
  void submit(DiskTransfer&) override {}
  DiskTransfer* wait() override {
    when_.wait();
    throw Error("the ring is gone");
  }
  void wake() override {}

 private:
  std::shared_future<void> when_;
};

// What is under way, what waits for its turn, and what comes then.
TEST(DiskServices, FailAllOperationsWhereTheirQueueFails) {
  const Folder folder;
  std::vector<DiskFile> files;
  files.emplace_back(disk_system(), folder.path(), true);
  const StripedFiles striped(std::move(files), kDiskPage);
  std::promise<void> now;
  Bytes buffers(kDiskPage, 0), memory(10 * kDiskPage, 0);
  DiskExtent extent{0, 10 * kDiskPage, "gradient", {}};
  DiskService service(striped, std::make_unique<BrokenQueue>(now.get_future().share()),
                      {buffers.data(), static_cast<std::size_t>(kDiskPage)}, kDiskPage, false);
  const auto begin = [&] {
    return service.submit(std::make_shared<DiskOperation>(extent, 0, memory.data(), 10 * kDiskPage, false));
  };
  std::vector<Pending> pending{begin(), begin()};
  now.set_value();
  for (Pending& each : pending)
    EXPECT_EQ(error_of([&] { each.wait(); }), "the disk store has failed: the ring is gone");
  EXPECT_EQ(error_of([&] { begin(); }), "the disk store has failed: the ring is gone");
}

// Transfers are over at once; nobody is woken the first times.
class DeafQueue final : public DiskQueue {
 public:
  explicit DeafQueue(std::vector<const char*>& memory) : memory_(memory) {}
  std::string_view name() const override { return "deaf"; }
  void submit(DiskTransfer& transfer) override {
    memory_.push_back(transfer.memory);
    over_.push_back(&transfer);
  }
  DiskTransfer* wait() override {
    if (over_.empty()) {
      std::unique_lock lock(mutex_);
      woken_.wait(lock, [this] { return called_ > 0; });
      --called_;
      return nullptr;
    }
    DiskTransfer* const over = over_.back();
    over_.pop_back();
    return over;
  }
  void wake() override {
    const std::lock_guard lock(mutex_);
    if (deaf_-- > 0) throw Error("no entry is free");
    ++called_;
    woken_.notify_one();
  }

 private:
  std::vector<const char*>& memory_;
  std::vector<DiskTransfer*> over_;
  std::mutex mutex_;
  std::condition_variable woken_;
  int called_ = 0, deaf_ = 2;
};

// The caller's memory is its own again.
TEST(DiskServices, ForgetAnOperationOfWhichTheirThreadCannotBeTold) {
  const Folder folder;
  std::vector<DiskFile> files;
  files.emplace_back(disk_system(), folder.path(), true);
  const StripedFiles striped(std::move(files), kDiskPage);
  Bytes buffers(kDiskPage, 0), first(2 * kDiskPage, 0), second(kDiskPage, 0);
  DiskExtent extent{0, 2 * kDiskPage, "gradient", {}};
  std::vector<const char*> used;
  {
    DiskService service(striped, std::make_unique<DeafQueue>(used),
                        {buffers.data(), static_cast<std::size_t>(kDiskPage)}, kDiskPage, false);
    const auto read = [&](Bytes& to, std::int64_t bytes) {
      return service.submit(std::make_shared<DiskOperation>(extent, 0, to.data(), bytes, false));
    };
    for (int i = 0; i < 2; ++i)
      EXPECT_EQ(error_of([&] { read(first, 2 * kDiskPage); }),
                "gradient: the disk store was given nothing to do: no entry is free");
    read(second, kDiskPage).wait();
  }
  EXPECT_EQ(used, std::vector<const char*>{second.data()});
}

TEST(DiskFiles, GoThroughTheCacheWhereTheFileSystemHasNoOtherWay) {
  OnDisks on;
  on.system.on_open = [](const std::string&, int flags) { return (flags & O_DIRECT) != 0 ? -EINVAL : 0; };
  const auto of = on.store(on.options(DiskQueueKind::threads));
  EXPECT_FALSE(of->direct());
  EXPECT_TRUE(has(of->describe(), "(through the page cache)"));
}

}  // namespace zero::test::disk_faults_test
