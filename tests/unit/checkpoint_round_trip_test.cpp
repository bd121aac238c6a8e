// Checkpoints, saved by some ranks and read by others, to the bit.
#include <gtest/gtest.h>
#include <unistd.h>

#include <bit>
#include <cmath>
#include <filesystem>
#include <limits>
#include <set>

#include "checkpoints.h"
#include "fault_env.h"
#include "persist/folders.h"
#include "persist/retention.h"
#include "persist/safetensors.h"
#include "zero/error.h"

namespace zero::test::checkpoint_round_trip_test {

const std::vector<std::string> kNoFaults1{""};

std::vector<std::string> no_faults(const Spread& spread) {
  return std::vector<std::string>(static_cast<std::size_t>(spread.ranks()));
}

// As an engine of `ranks` reads it, in the order of its memory; and in parts that lie anywhere.
void expect_reads(Env& env, const std::string& folder, const MadeState& made, int ranks) {
  const Checkpoint checkpoint = Checkpoint::open(env, folder);
  CheckpointSource source(env, checkpoint);
  EXPECT_EQ(source.scalars(), made.scalars);
  ASSERT_EQ(source.tensors().size(), made.tensors.size());
  for (std::size_t t = 0; t < made.tensors.size(); ++t) {
    const MadeState::Tensor& each = made.tensors[t];
    EXPECT_EQ(source.tensors()[t], each.tensor);
    const auto item = static_cast<std::size_t>(size_of(each.tensor.dtype));
    const std::int64_t n = each.tensor.numel();
    for (int rank = 0; rank < ranks; ++rank) {
      const std::int64_t begin = n * rank / ranks, end = n * (rank + 1) / ranks;
      std::string memory(static_cast<std::size_t>(end - begin) * item, '\0');
      StretchWriter().write({each.order, begin, end, each.tensor.dtype, memory.data()},
                            [&](auto first, auto last, void* values) { source.read(t, first, last, values); });
      each.order.each_run(begin, end, [&](auto first, auto last, auto place) {
        ASSERT_EQ(
            memory.substr(static_cast<std::size_t>(place - begin) * item,
                          static_cast<std::size_t>(last - first) * item),
            each.values.substr(static_cast<std::size_t>(first) * item, static_cast<std::size_t>(last - first) * item))
            << describe(each.tensor.key);
      });
      std::string row_major(memory.size(), '\0');
      source.read(t, begin, end, row_major.data());
      ASSERT_EQ(row_major, each.values.substr(static_cast<std::size_t>(begin) * item, row_major.size()));
    }
    EXPECT_THROW(source.read(t, 0, n + 1, nullptr), StateError);
  }
}

TEST(Checkpoints, AreReadOnAnyNumberOfRanks) {
  const MadeState made = small_state();
  for (const Spread spread : {Spread{1, 1}, Spread{4, 1}, Spread{1, 3}, Spread{2, 2}, Spread{5, 1}, Spread{3, 2}}) {
    FaultEnv env;
    ASSERT_EQ(save(env, "run", made, spread), no_faults(spread));
    EXPECT_EQ(list_checkpoints(env, "run"), (std::vector<CheckpointPlace>{{7, "run/step-000007", {1}}}));
    EXPECT_TRUE(verify(env, "run/step-000007").empty());
    for (const int ranks : {1, 2, 3, 4, 5}) expect_reads(env, "run/step-000007", made, ranks);
  }
}

// Pieces longer than a checksum covers, cut among copies, and runs longer than a chunk.
TEST(Checkpoints, OfLargeTensorsAreSpreadOverTheRanksThatHaveThem) {
  MadeState made;
  made.add({{"wide", StateKind::moment, "0"}, Dtype::f32, {1500, 2003}})
      .add({{"turned", StateKind::moment, "0"}, Dtype::f32, {1999, 1501}}, {1, 0})
      .add({{"single", StateKind::parameter}, Dtype::f64, {5'000'003}});
  for (const Spread spread : {Spread{1, 3}, Spread{2, 2}}) {
    FaultEnv env;
    ASSERT_EQ(save(env, "run", made, spread, {.round = 5 << 20}), no_faults(spread));
    expect_reads(env, "run/step-000000", made, 3);
    const Manifest manifest = Checkpoint::open(env, "run/step-000000").manifest();
    for (const StoredFile& file : manifest.files)
      EXPECT_NEAR(static_cast<double>(file.bytes), static_cast<double>(made.bytes()) / spread.ranks(), 1e4);
    std::int64_t pieces = 0;
    for (const StoredTensor& stored : manifest.tensors)
      for (const StoredPiece& piece : stored.pieces) {
        EXPECT_LE(piece.at.bytes, 16 << 20);
        EXPECT_LE(piece.elements.size(), 5u) << "runs that repeat are not found";
        ++pieces;
      }
    EXPECT_LE(pieces, 24);
  }
}

TEST(Checkpoints, TakeTheRoomOfTheStateAndOfTheManifest) {
  MadeState made;
  for (int i = 0; i < 200; ++i)
    made.add({{"layer" + std::to_string(i), StateKind::moment, "0"}, Dtype::f32, {100, 100}});
  for (const Spread spread : {Spread{4, 1}, Spread{1, 4}}) {
    FaultEnv env;
    ASSERT_EQ(save(env, "run", made, spread), no_faults(spread));
    std::int64_t bytes = 0;
    for (const std::string& path : env.files("run/step-000000"))
      if (!path.ends_with("manifest.json")) bytes += static_cast<std::int64_t>(env.bytes_of(path).size());
    EXPECT_LE(static_cast<double>(bytes), 1.01 * static_cast<double>(made.bytes()));
    EXPECT_GE(bytes, made.bytes());
  }
}

TEST(Checkpoints, ConsistOfSafetensorsFiles) {
  const MadeState made = small_state();
  FaultEnv env;
  ASSERT_EQ(save(env, "run", made, {2, 2}), no_faults({2, 2}));
  std::int64_t elements = 0;
  for (int rank = 0; rank < 4; ++rank) {
    const std::string& bytes = env.bytes_of("run/step-000007/rank-0000" + std::to_string(rank) + ".safetensors");
    const SafetensorsHeader header =
        read_safetensors_header(bytes, static_cast<std::int64_t>(bytes.size()), "rank file");
    EXPECT_EQ(header.data_begin % 8, 0);
    for (const TensorEntry& entry : header.tensors) {
      elements += elements_of(entry.shape);
      if (entry.name != "b parameter") continue;
      EXPECT_EQ(entry.type, TensorType::f64);
      EXPECT_EQ(entry.shape, (std::vector<std::int64_t>{}));
      EXPECT_EQ(bytes.substr(static_cast<std::size_t>(header.data_begin + entry.begin), 8), made.tensors[2].values);
    }
  }
  EXPECT_EQ(elements, 42 + 42 + 1 + 120 + 5 + 2);
}

TEST(Checkpoints, KeepScalarsToTheBit) {
  MadeState made = small_state();
  made.scalars.skipped_steps = 3;
  made.scalars.micro_batches = std::numeric_limits<std::int64_t>::max();
  made.scalars.loss_scaler = {0x1p-1074, 5, 1};
  const double infinity = std::numeric_limits<double>::infinity();
  made.scalars.float8["layer.\"quoted\" \xc3\xa4"] = {{0.1, -0.0, 1.0 / 3, 1024, infinity, -infinity}, {}};
  FaultEnv env;
  ASSERT_EQ(save(env, "run", made, {2, 1}), no_faults({2, 1}));
  const StateScalars scalars = Checkpoint::open(env, "run/step-000007").manifest().scalars;
  EXPECT_EQ(scalars, made.scalars);
  EXPECT_TRUE(std::signbit(scalars.float8.begin()->second.inputs[1]));

  const double strange = std::bit_cast<double>(std::uint64_t{0x7ff8000000001234});
  made.scalars.float8.begin()->second.gradients = {strange};
  ASSERT_EQ(save(env, "other", made, {1, 1}), kNoFaults1);
  const double back = Checkpoint::open(env, "other/step-000007").manifest().scalars.float8.begin()->second.gradients[0];
  EXPECT_EQ(std::bit_cast<std::uint64_t>(back), std::bit_cast<std::uint64_t>(strange));
}

TEST(Checkpoints, KeepValuesOfTheProgram) {
  FaultEnv env;
  const std::vector<float> order{3, 1, 2};
  const std::string user = R"({"epoch": 3, "big": 123456789012345678901234567890})";
  ASSERT_EQ(save(env, "run", small_state(), {2, 2}, {.plan = "hybrid", .user = user},
                 {{"sampler", Dtype::f32, {3}, order.data()}, {"nothing", Dtype::u8, {0}, nullptr}}),
            no_faults({2, 2}));
  const Checkpoint checkpoint = Checkpoint::open(env, "run/step-000007");
  EXPECT_EQ(checkpoint.manifest().user, user);
  EXPECT_EQ(checkpoint.manifest().plan, "hybrid");
  EXPECT_EQ(checkpoint.manifest().mesh, MeshShape(4, {.shard = 2}));
  ASSERT_EQ(checkpoint.manifest().user_tensors.size(), 2u);
  EXPECT_EQ(checkpoint.manifest().user_tensors[0].name, "sampler");
  std::vector<float> read(3);
  CheckpointSource source(env, checkpoint);
  source.read_user(0, read.data());
  source.read_user(1, nullptr);
  EXPECT_EQ(read, order);
  const auto faults = save(env, "bad", small_state(), {1, 2}, {.user = "{"});
  EXPECT_NE(faults[1].find("the program's values"), std::string::npos) << faults[1];
  EXPECT_EQ(faults[0], faults[1]);
}

TEST(Checkpoints, ReadNoMoreThanIsWanted) {
  MadeState made;
  made.add({{"long", StateKind::parameter}, Dtype::f32, {30'000'000}});
  FaultEnv env;
  ASSERT_EQ(save(env, "run", made, {1, 1}), kNoFaults1);
  const Checkpoint checkpoint = Checkpoint::open(env, "run/step-000000");
  ASSERT_EQ(checkpoint.manifest().tensors[0].pieces.size(), 8u);
  std::string& bytes = env.bytes_of("run/step-000000/rank-00000.safetensors");
  bytes.back() = static_cast<char>(bytes.back() + 1);
  CheckpointSource source(env, checkpoint);
  std::vector<float> values(10'000'000);
  source.read(0, 0, 10'000'000, values.data());
  const std::int64_t before = env.operations();
  source.read(0, 9'000'000, 9'000'100, values.data());
  EXPECT_EQ(env.operations() - before, 1) << "of a piece that was verified, what these lie in";
  EXPECT_THROW(source.read(0, 29'999'000, 29'999'001, values.data()), CheckpointError);
}

TEST(Checkpoints, AreRealFiles) {
  std::string root = (std::filesystem::temp_directory_path() / "zero_checkpoints.XXXXXX").string();
  ASSERT_TRUE(::mkdtemp(root.data()));
  const std::string folder = root + "/deep/run";
  const MadeState made = small_state();
  EXPECT_EQ(save(posix_env(), folder, made, {2, 2}), no_faults({2, 2}));
  expect_reads(posix_env(), folder + "/step-000007", made, 3);
  const auto again = save(posix_env(), folder, made, {2, 2});
  EXPECT_NE(again[3].find("is there already"), std::string::npos) << again[3];
  EXPECT_EQ(save(posix_env(), folder, made, {3, 1}, {.replace = true}), no_faults({3, 1}));
  EXPECT_TRUE(verify(posix_env(), folder + "/step-000007").empty());
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) names.insert(entry.path().filename());
  EXPECT_EQ(names,
            (std::set<std::string>{".lock", "step-000007", "lineage.json", "manifest.json", "rank-00000.safetensors",
                                   "rank-00001.safetensors", "rank-00002.safetensors"}));
  std::filesystem::remove_all(root);
}

TEST(Snapshots, AreWrittenAlikeFromACopyAndFromWhereTheStateIs) {
  const MadeState made = small_state();
  FaultEnv env;
  Snapshot copied(state_of(made, {1, 1}, 0), 0);
  const Snapshot there(state_of(made, {1, 1}, 0), 0);
  std::vector<char> memory(static_cast<std::size_t>(copied.bytes()));
  copied.take(memory.data());
  write_checkpoint(env, Communicator(), "copied", copied, {});
  write_checkpoint(env, Communicator(), "there", there, {});
  for (const std::string file : {"/step-000007/manifest.json", "/step-000007/rank-00000.safetensors"})
    EXPECT_EQ(env.bytes_of("copied" + file), env.bytes_of("there" + file)) << file;
}

// Large files go past the page cache, where that can be done, their end through it.
TEST(Snapshots, ThatAreLargeAreWrittenOnPages) {
  MadeState made;
  made.add({{"wide", StateKind::parameter}, Dtype::f32, {1811, 2003}})
      .add({{"odd", StateKind::parameter}, Dtype::u8, {5}});
  const std::string folder = std::filesystem::temp_directory_path() / ("zero_pages." + std::to_string(::getpid()));
  Snapshot snapshot(state_of(made, {1, 1}, 0), 0);
  const auto expect_saved = [&] {
    write_checkpoint(posix_env(), Communicator(), folder, snapshot, {.replace = true, .round = 3 << 20});
    const std::string saved = folder + "/step-000000";
    EXPECT_EQ(Checkpoint::open(posix_env(), saved).manifest().files[0].header_bytes % kDirectPage, 0);
    EXPECT_TRUE(verify(posix_env(), saved).empty());
    expect_reads(posix_env(), saved, made, 2);
  };
  expect_saved();  // from where the state is
  std::vector<char> memory(static_cast<std::size_t>(snapshot.bytes() + 2 * kDirectPage));
  const auto skipped = -reinterpret_cast<std::uintptr_t>(memory.data()) % kDirectPage;
  snapshot.take(memory.data() + skipped);
  expect_saved();  // from a copy on pages
  snapshot = Snapshot(state_of(made, {1, 1}, 0), 0);
  snapshot.take(memory.data() + skipped + 64);
  expect_saved();  // from one that is not
  std::filesystem::remove_all(folder);
}

TEST(DirectFiles, HaveTheSameBytes) {
  const std::string path = std::filesystem::temp_directory_path() / ("zero_direct." + std::to_string(::getpid()));
  std::vector<char> memory(5 * kDirectPage);
  for (std::size_t i = 0; i < memory.size(); ++i) memory[i] = static_cast<char>(i * 31 >> 3);
  const char* const page = memory.data() + -reinterpret_cast<std::uintptr_t>(memory.data()) % kDirectPage;
  const auto file = posix_env().create(path, Caching::direct);
  std::string expected;
  const auto write = [&](const char* from, std::int64_t count) {
    file->write(from, count);
    expected.append(from, static_cast<std::size_t>(count));
  };
  write(page, 2 * kDirectPage + 100);    // the end of it is on no page
  write(page + 100, kDirectPage - 100);  // until the next
  write(page + 1, kDirectPage);          // from no page of the memory
  write(page + kDirectPage, 2 * kDirectPage);
  write(page, 1);
  file->sync();
  file->close();
  EXPECT_EQ(read_text(posix_env(), path, 1 << 20), expected);
  std::filesystem::remove(path);
}

}  // namespace zero::test::checkpoint_round_trip_test
