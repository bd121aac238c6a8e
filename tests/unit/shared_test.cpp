#include "comm/shared.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "comm/segment.h"
#include "comm_fixture.h"
#include "shared_group.h"

namespace zero::test::shared_test {

std::string title(const testing::TestParamInfo<CommunicatorSuite::ParamType>& info) {
  return std::to_string(std::get<1>(info.param)) + "ranks";
}

// A copy of `array` in memory that the peers read in place.
View placed(const Communicator& group, const Array& array, std::vector<std::shared_ptr<void>>& keep) {
  keep.push_back(group.own_memory(static_cast<std::int64_t>(array.bytes.size())));
  std::memcpy(keep.back().get(), array.bytes.data(), array.bytes.size());
  return {keep.back().get(), array.count, array.dtype};
}

Array taken(View view) {
  Array array(view.dtype, view.count);
  std::memcpy(array.bytes.data(), view.data, array.bytes.size());
  return array;
}

// The sizes are above and below what travels inside a message, and above what is staged at a time.
class InPlace : public CommunicatorSuite {
 protected:
  // Whether rank `rank`'s memory can be read in place; where one cannot, none is.
  using Placed = bool (*)(int rank);
  static constexpr Placed kPlaced[] = {[](int) { return true; }, [](int rank) { return rank != 1; }};
  static constexpr std::int64_t kCounts[] = {3, 1'500, 100'001};
};

TEST_P(InPlace, CollectivesGiveTheSameAsAnywhere) {
  struct Inputs {
    std::int64_t count;
    std::vector<Array> all;
    Array sum;
  };
  std::vector<Inputs> inputs;
  for (const Dtype dtype : {Dtype::bf16, Dtype::f32})
    for (const std::int64_t count : kCounts) {
      const auto all = every_rank(dtype, count * size());
      inputs.push_back({count, all, reference_sum(all)});
    }
  run([&](const Communicator& c) {
    for (const auto& [count, all, whole_sum] : inputs)
      for (const Placed here : kPlaced) {
        std::vector<std::shared_ptr<void>> keep;
        const Dtype dtype = all.front().dtype;
        Array mine = all[static_cast<std::size_t>(c.rank())];
        const View view = here(c.rank()) ? placed(c, mine, keep) : mine.view();
        Array sum(accumulation(dtype), count);
        c.reduce_scatter(view, sum.view()).wait();
        EXPECT_EQ(sum, part(whole_sum, c.rank() * count, count));
        Array swapped(dtype, count * size());
        c.all_to_all(view, swapped.view()).wait();
        for (int r = 0; r < size(); ++r)
          EXPECT_EQ(part(swapped, r * count, count), part(all[static_cast<std::size_t>(r)], c.rank() * count, count));
        c.broadcast(view, size() - 1).wait();
        EXPECT_EQ(taken(view), all.back());
      }
  });
}

TEST_P(InPlace, AllReduceLeavesTheSameBitsEverywhere) {
  run([&](const Communicator& c) {
    for (const Placed here : kPlaced)
      for (const std::int64_t count : kCounts) {
        std::vector<std::shared_ptr<void>> keep;
        auto all = every_rank(Dtype::f32, count);
        const Array expected = reference_sum(all);
        Array& mine = all[static_cast<std::size_t>(c.rank())];
        const View view = here(c.rank()) ? placed(c, mine, keep) : mine.view();
        c.all_reduce(view).wait();
        EXPECT_EQ(taken(view), expected) << count;
      }
  });
}

TEST_P(InPlace, CommonMemoryIsOneForAll) {
  run([&](const Communicator& c) {
    const std::int64_t count = 200'001;
    const auto memory = c.common_memory(count * size() * 4);
    const View whole{memory.get(), count * size(), Dtype::f32};
    EXPECT_EQ(taken(whole), Array(Dtype::f32, count * size()));
    c.barrier().wait();  // nobody writes before all have looked
    const auto all = every_rank(Dtype::f32, count);
    float* const slot = static_cast<float*>(memory.get()) + c.rank() * count;
    std::memcpy(slot, all[static_cast<std::size_t>(c.rank())].bytes.data(), static_cast<std::size_t>(count * 4));
    c.all_gather({slot, count, Dtype::f32}, whole).wait();
    EXPECT_EQ(taken(whole), concatenated(all));
    c.barrier().wait();
  });
}

// Resident bytes of the segments that this process has mapped.
std::int64_t mapped_bytes() {
  std::ifstream in("/proc/self/smaps");
  std::int64_t bytes = 0;
  bool ours = false;
  for (std::string line; std::getline(in, line);) {
    if (line.find('-') < line.find(' ') && line.find(':') > line.find(' '))
      ours = line.find("/memfd:zero") != line.npos;
    if (ours && line.starts_with("Rss:")) bytes += std::stoll(line.substr(4)) << 10;
  }
  return bytes;
}

TEST_P(InPlace, StagingDoesNotGrowWithTheMessage) {
  run([&](const Communicator& c) {
    std::vector<std::int64_t> held;
    for (const std::int64_t count : {10 << 16, 20 << 16}) {
      std::vector<float> values(static_cast<std::size_t>(count));
      c.all_reduce({values.data(), count}).wait();
      c.barrier().wait();
      held.push_back(mapped_bytes());
      c.barrier().wait();
    }
    EXPECT_GT(held[0], 0);
    EXPECT_EQ(held[0], held[1]);
  });
}

TEST_P(InPlace, MemoryOutlivesItsGroup) {
  std::vector<std::shared_ptr<void>> keep(static_cast<std::size_t>(size()));
  run([&](const Communicator& c) {
    auto& mine = keep[static_cast<std::size_t>(c.rank())];
    mine = c.own_memory(10'000);
    std::memset(mine.get(), c.rank() + 1, 10'000);
  });
  for (int r = 0; r < size(); ++r)
    EXPECT_EQ(static_cast<const char*>(keep[static_cast<std::size_t>(r)].get())[9'999], r + 1);
}

TEST_P(InPlace, RefusesMoreMemoryThanTheHostHas) {
  run([&](const Communicator& c) {
    EXPECT_THROW(c.own_memory(std::int64_t{1} << 50), ConfigError);
    EXPECT_NE(c.own_memory(1), nullptr);
    c.barrier().wait();
  });
}

INSTANTIATE_TEST_SUITE_P(Shared, InPlace, testing::Combine(testing::Values(kShared), testing::Values(2, 3, 5)), title);

TEST(Heap, GivesTheLowestRoomThatIsLongEnough) {
  Heap heap(0, 10 * 4096);
  const auto a = heap.take(1), b = heap.take(2 * 4096), c = heap.take(4096 + 1);
  EXPECT_EQ(a, 0);
  EXPECT_EQ(b, 4096);
  EXPECT_EQ(c, 3 * 4096);
  heap.give(a, 1);
  EXPECT_EQ(heap.take(4097), 5 * 4096);
  heap.give(b, 2 * 4096);
  EXPECT_EQ(heap.take(3 * 4096), 0);
  EXPECT_EQ(heap.take(4 * 4096), -1);
}

// A limit of this process, lowered for a while.
class Limited {
 public:
  Limited(__rlimit_resource resource, rlim_t most) : resource_(resource) {
    getrlimit(resource_, &before_);
    rlimit lower = before_;
    lower.rlim_cur = most;
    setrlimit(resource_, &lower);
  }
  ~Limited() { setrlimit(resource_, &before_); }
  Limited(const Limited&) = delete;
  Limited& operator=(const Limited&) = delete;

 private:
  __rlimit_resource resource_;
  rlimit before_{};
};

// The kernel ends a process that makes a file too long.
TEST(SharedProcesses, KeepToTheLimitOfAFilesSize) {
  const auto joined = [] { return Communicator(shared_group(1, std::chrono::minutes(2))(0)); };
  {
    const Limited scope(RLIMIT_FSIZE, 64 << 20);
    const Communicator c = joined();
    EXPECT_NE(c.own_memory(16 << 20), nullptr);
    EXPECT_NE(c.common_memory(16 << 20), nullptr);
    EXPECT_THROW(c.own_memory(32 << 20), ConfigError);
  }
  const Limited scope(RLIMIT_FSIZE, 64 << 10);
  try {
    joined();
    ADD_FAILURE() << "a longer file than is allowed";
  } catch (const CommError& error) {
    EXPECT_NE(std::string(error.what()).find("ulimit -f"), std::string::npos) << error.what();
  }
}

// What a process tells another: the name of a group.
class Pipe {
 public:
  Pipe() { EXPECT_EQ(pipe(ends_), 0); }
  void write(const std::string& name) const { EXPECT_EQ(::write(ends_[1], name.data(), name.size()), ssize(name)); }
  std::string read() const {
    std::string name(256, 0);
    name.resize(static_cast<std::size_t>(::read(ends_[0], name.data(), name.size())));
    return name;
  }

 private:
  static ssize_t ssize(const std::string& text) { return static_cast<ssize_t>(text.size()); }
  int ends_[2];
};

int descriptors() {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return static_cast<int>(std::distance(begin(all), end(all)));
}

// The time limit is far away, so who does not notice fails by the wrong words.
TEST(SharedProcesses, AKilledRankIsNamed) {
  const int before = descriptors();
  {
    const Pipe pipe;
    SharedMemoryOptions options{kNoHang};
    options.publish = [&](const std::string& name) { pipe.write(name); };
    options.look_up = [&] { return pipe.read(); };
    const pid_t child = fork();
    if (child == 0) {
      const Communicator c(shared_memory_communicator(1, 2, options));
      c.barrier().wait();
      raise(SIGKILL);
    }
    const Communicator c(shared_memory_communicator(0, 2, options));
    c.barrier().wait();
    try {
      c.barrier().wait();
      ADD_FAILURE() << "the dead rank took part";
    } catch (const CommError& error) {
      EXPECT_NE(std::string(error.what()).find("rank 0: barrier #2: rank 1 died"), std::string::npos) << error.what();
    }
    EXPECT_THROW(c.barrier().wait(), CommError);
    EXPECT_EQ(waitpid(child, nullptr, 0), child);
  }
  EXPECT_EQ(descriptors(), before + 2);  // the pipe
}

// What splits a group of two processes: both fail when `limited` has no descriptors, and then it works.
void expect_split_to_fail_for_both(int limited, const std::string& child_error, const std::string& parent_error) {
  const Pipe pipe, answer;
  SharedMemoryOptions options{std::chrono::minutes(2)};
  options.publish = [&](const std::string& name) { pipe.write(name); };
  options.look_up = [&] { return pipe.read(); };
  const auto run = [&](int rank) -> std::string {
    const Communicator c(shared_memory_communicator(rank, 2, options));
    std::string error = "none";
    try {
      const Limited scope(RLIMIT_NOFILE, rank == limited ? 0 : 1024);
      c.split(0, rank);
    } catch (const CommError& thrown) {
      error = thrown.what();
    }
    c.split(0, rank).barrier().wait();
    c.barrier().wait();
    return error;
  };
  const pid_t child = fork();
  if (child == 0) {
    try {
      answer.write(run(1));
    } catch (const std::exception& error) {
      answer.write(error.what());
    }
    _exit(0);
  }
  const std::string own = run(0), theirs = answer.read();
  EXPECT_EQ(waitpid(child, nullptr, 0), child);
  EXPECT_NE(own.find(parent_error), std::string::npos) << own;
  EXPECT_NE(theirs.find(child_error), std::string::npos) << theirs;
}

TEST(SharedProcesses, NobodyWaitsForOneWhoCannotSplit) {
  expect_split_to_fail_for_both(0, "rank 1: rank 0 could not make memory to share", "Too many open files");
  expect_split_to_fail_for_both(1, "Too many open files", "rank 0: split #2: rank 1 failed");
}

}  // namespace zero::test::shared_test
