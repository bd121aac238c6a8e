// What is read of a checkpoint: each byte that is used is one that was checked as it was read, and few are read twice.
#include <gtest/gtest.h>

#include "checkpoints.h"
#include "counting_env.h"
#include "fault_env.h"
#include "persist/checkpoint_list.h"
#include "zero/error.h"

namespace zero::test::checkpoint_reads_test {

constexpr std::int64_t kRows = 700, kColumns = 1001;

class CheckpointReads : public testing::Test {
 protected:
  void SetUp() override {
    made_.add({{"wide", StateKind::moment, "0"}, Dtype::f32, {kRows, kColumns}});
    ASSERT_EQ(save(files_, "run", made_, {1, 1}), std::vector<std::string>(1));
  }
  std::string& bytes() { return files_.bytes_of("run/step-000000/rank-00000.safetensors"); }
  std::string expected(std::int64_t begin, std::int64_t end) const {
    return made_.tensors[0].values.substr(static_cast<std::size_t>(begin) * 4,
                                          static_cast<std::size_t>(end - begin) * 4);
  }
  static std::string read(CheckpointSource& source, std::int64_t begin, std::int64_t end) {
    std::string values(static_cast<std::size_t>(end - begin) * 4, '\0');
    source.read(0, begin, end, values.data());
    return values;
  }

  MadeState made_;
  FaultEnv files_;
  CountingEnv env_{files_};
};

TEST_F(CheckpointReads, OfAllTakeEachByteOnce) {
  const Checkpoint checkpoint = Checkpoint::open(env_, "run/step-000000");
  CheckpointSource source(env_, checkpoint);
  EXPECT_EQ(read(source, 0, kRows * kColumns), made_.tensors[0].values);
  EXPECT_EQ(env_.bytes, bytes_of(checkpoint.manifest()));
}

// All of the piece the first time, then what the parts lie in.
TEST_F(CheckpointReads, OfPartsTakeLittleMore) {
  const Checkpoint checkpoint = Checkpoint::open(env_, "run/step-000000");
  CheckpointSource source(env_, checkpoint);
  const std::int64_t all = kRows * kColumns;
  EXPECT_EQ(read(source, 5, all / 2), expected(5, all / 2));
  EXPECT_EQ(env_.bytes, bytes_of(checkpoint.manifest()));
  EXPECT_EQ(read(source, all / 2, all), expected(all / 2, all));
  EXPECT_EQ(read(source, 17, 18), expected(17, 18));
  EXPECT_LE(env_.bytes, bytes_of(checkpoint.manifest()) + all * 2 + (3 << 18));
}

// Whatever is changed in the file after it was found right.
TEST_F(CheckpointReads, AreCheckedEachTime) {
  const Checkpoint checkpoint = Checkpoint::open(env_, "run/step-000000");
  const std::int64_t all = kRows * kColumns;
  for (const auto& [begin, end] : std::vector<std::pair<std::int64_t, std::int64_t>>{{0, 10}, {0, all}, {9, all}}) {
    CheckpointSource source(env_, checkpoint);
    EXPECT_EQ(read(source, begin, end), expected(begin, end));
    bytes().back() ^= 1;
    EXPECT_THROW(read(source, all - 10, all), CheckpointError);
    EXPECT_THROW(read(source, 0, all), CheckpointError);
    bytes().back() ^= 1;
    EXPECT_EQ(read(source, 100, 300'000), expected(100, 300'000));
  }
}

TEST_F(CheckpointReads, OfWhatIsDamagedAreRefusedUntilItIsNot) {
  const Checkpoint checkpoint = Checkpoint::open(env_, "run/step-000000");
  CheckpointSource source(env_, checkpoint);
  bytes().back() ^= 1;
  for (int i = 0; i < 2; ++i) EXPECT_THROW(read(source, 0, 10), CheckpointError);
  bytes().back() ^= 1;
  EXPECT_EQ(read(source, 0, 10), expected(0, 10));
}

}  // namespace zero::test::checkpoint_reads_test
