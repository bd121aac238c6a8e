// In what two checkpoints differ.
#include "persist/checkpoint_diff.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

#include "base/half.h"
#include "checkpoints.h"
#include "fault_env.h"
#include "zero/error.h"

namespace zero::test::checkpoint_diff_test {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

template <class T>
void put(MadeState::Tensor& tensor, std::int64_t element, T value) {
  std::memcpy(tensor.values.data() + static_cast<std::size_t>(element) * sizeof(T), &value, sizeof(T));
}

template <class T>
T narrowed(float value) {
  T result;
  narrow(value, result);
  return result;
}

class CheckpointDiff : public testing::Test {
 protected:
  CheckpointDifferences between(const MadeState& a, const MadeState& b, const Spread& spread_a = {2, 1},
                                const Spread& spread_b = {1, 3}) {
    keep(a, "a", spread_a);
    keep(b, "b", spread_b);
    return differences(env_, open("a"), open("b"));
  }
  void keep(const MadeState& made, const std::string& folder, const Spread& spread, const std::string& user = {},
            const std::vector<UserTensor>& tensors = {}) {
    if (env_.has(folder)) remove_folder(env_, folder);
    ASSERT_EQ(save(env_, folder, made, spread, {.user = user}, tensors),
              std::vector<std::string>(static_cast<std::size_t>(spread.ranks())));
  }
  Checkpoint open(const std::string& folder) {
    return Checkpoint::open(env_, folder + "/" + env_.list(folder).back().name);
  }

  FaultEnv env_;
};

TEST_F(CheckpointDiff, IsNoneWhateverTheyWereWrittenBy) {
  const MadeState made = small_state();
  const CheckpointDifferences found = between(made, made, {2, 2}, {5, 1});
  EXPECT_TRUE(found.none());
  EXPECT_EQ(found.tensors, 7);
  EXPECT_EQ(found.elements, 42 + 42 + 1 + 120 + 5 + 2);
}

// A tensor in another order of memory has the same elements.
TEST_F(CheckpointDiff, CountsElementsOfEveryDtype) {
  MadeState a;
  for (const Dtype dtype : {Dtype::f32, Dtype::f64, Dtype::bf16, Dtype::f16, Dtype::i64, Dtype::i32, Dtype::u8})
    a.add({{std::string(name(dtype)), StateKind::moment, "0"}, dtype, {4, 3, 5}}, {2, 0, 1});
  for (MadeState::Tensor& each : a.tensors) each.values.assign(each.values.size(), '\0');
  MadeState b = a;
  put(b.tensors[0], 17, 0.5f);
  put(b.tensors[0], 3, -0.25f);
  put(b.tensors[1], 17, 1e300);
  put(b.tensors[2], 17, narrowed<Bf16>(-3));
  put(b.tensors[3], 17, narrowed<Fp16>(0x1p-24f));
  put(a.tensors[4], 17, std::numeric_limits<std::int64_t>::max());
  put(b.tensors[4], 17, std::numeric_limits<std::int64_t>::min());
  put(b.tensors[5], 17, std::int32_t{-2});
  put(b.tensors[6], 17, std::uint8_t{200});
  const auto difference = [](const char* dtype, std::int64_t differ, double largest) {
    return ValueDifference{std::string(dtype) + " moment 0", 60, differ, 0, largest, {1, 0, 2}};
  };
  const CheckpointDifferences found = between(a, b);
  EXPECT_EQ(found.values,
            (std::vector{difference("fp32", 2, 0.5), difference("fp64", 1, 1e300), difference("bf16", 1, 3),
                         difference("fp16", 1, 0x1p-24), difference("int64", 1, 0x1p64), difference("int32", 1, 2),
                         difference("uint8", 1, 200)}));
  EXPECT_EQ(found.tensors, 7);
  EXPECT_FALSE(found.none());
}

TEST_F(CheckpointDiff, TakesNanForEqualToNanAlone) {
  MadeState a;
  a.add({{"x", StateKind::parameter}, Dtype::f64, {4}}).add({{"y", StateKind::parameter}, Dtype::f64, {3}});
  for (MadeState::Tensor& each : a.tensors) each.values.assign(each.values.size(), '\0');
  MadeState b = a;
  put(a.tensors[0], 0, kNan);
  put(b.tensors[0], 0, std::bit_cast<double>(std::bit_cast<std::uint64_t>(kNan) | 1));
  put(b.tensors[0], 1, kNan);
  EXPECT_EQ(between(a, b).values, (std::vector{ValueDifference{"x parameter", 4, 1, 1}}));
  put(a.tensors[0], 2, 5.0);
  put(b.tensors[1], 0, kInfinity);
  put(a.tensors[1], 1, kInfinity);
  put(b.tensors[1], 1, kInfinity);
  EXPECT_EQ(between(a, b).values, (std::vector{ValueDifference{"x parameter", 4, 2, 1, 5, {2}},
                                               ValueDifference{"y parameter", 3, 1, 0, kInfinity, {0}}}));
}

TEST_F(CheckpointDiff, TellsZerosOfOtherSignsApart) {
  MadeState a;
  a.add({{"x", StateKind::parameter}, Dtype::f32, {}});
  put(a.tensors[0], 0, 0.0f);
  MadeState b = a;
  put(b.tensors[0], 0, -0.0f);
  EXPECT_EQ(between(a, b).values, (std::vector{ValueDifference{"x parameter", 1, 1, 0, 0, {}}}));
}

TEST_F(CheckpointDiff, ListsTensorsThatOneHasAloneOrInAnotherForm) {
  MadeState a = small_state(), b;
  b.scalars = a.scalars;
  b.add({{"new", StateKind::parameter}, Dtype::f32, {2}})
      .add({{"a", StateKind::main_weight}, Dtype::f32, {7, 6}})
      .add({{"b", StateKind::parameter}, Dtype::f32, {}});
  b.add({{"c", StateKind::scale, "1"}, Dtype::f32, {2}, StateBlocks{256, 0, {}}});
  const CheckpointDifferences found = between(a, b);
  EXPECT_EQ(
      found.forms,
      (std::vector<FormDifference>{
          {"a main weight", "fp32 [6, 7]", "fp32 [7, 6]"},
          {"a moment 0", "bf16 [6, 7]", ""},
          {"b parameter", "fp64 []", "fp32 []"},
          {"c moment 1", "uint8 [4, 3, 2, 5]", ""},
          {"none parameter", "fp32 [3, 0]", ""},
          {"mean buffer", "int64 [5]", ""},
          {"c scale 1",
           "fp32 [2] of blocks of 256, the first after 32 elements of others, dimensions in the order [0, 2, 3, 1]",
           "fp32 [2] of blocks of 256, the first after 0 elements of others"},
          {"new parameter", "", "fp32 [2]"}}));
  EXPECT_EQ(found.tensors, 0);
  EXPECT_TRUE(found.values.empty());
}

TEST_F(CheckpointDiff, FindsElementsOfTensorsThatAreLargerThanAChunk) {
  MadeState a;
  a.add({{"turned", StateKind::moment, "0"}, Dtype::f32, {1999, 1501}}, {1, 0});
  for (std::int64_t i = 0; i < 1999 * 1501; ++i) put(a.tensors[0], i, 1.0f);
  MadeState b = a;
  put(b.tensors[0], 1998 * 1501 + 7, 2.5f);
  put(b.tensors[0], (4 << 20) / 4, 2.0f);
  keep(a, "a", {2, 2});
  keep(b, "b", {1, 3});
  std::int64_t told = 0;
  const CheckpointDifferences found =
      differences(env_, open("a"), open("b"), [&](std::int64_t bytes) { told += bytes; });
  EXPECT_EQ(found.values, (std::vector{ValueDifference{"turned moment 0", 1999 * 1501, 2, 0, 1.5, {1998, 7}}}));
  EXPECT_EQ(told, 2 * a.bytes());
}

TEST_F(CheckpointDiff, ComparesTheProgramsOwn) {
  std::vector<float> values((5 << 20) / 4, 1), others = values;
  others.back() = 3;
  const auto rows = static_cast<std::int64_t>(values.size()) / 2;
  keep(small_state(), "a", {2, 1}, R"({"epoch": 1})",
       {{"order", Dtype::f32, {rows, 2}, values.data()}, {"left", Dtype::f32, {2, 2}, values.data()}});
  keep(small_state(), "b", {1, 1}, R"({"epoch": 2})", {{"order", Dtype::f32, {rows, 2}, others.data()}});
  const CheckpointDifferences found = differences(env_, open("a"), open("b"));
  EXPECT_EQ(found.values, (std::vector{ValueDifference{"order of the program", 2 * rows, 1, 0, 2, {rows - 1, 1}}}));
  EXPECT_EQ(found.forms, (std::vector<FormDifference>{{"left of the program", "fp32 [2, 2]", ""}}));
  EXPECT_EQ(found.scalars, (std::vector<ScalarDifference>{{"user", R"({"epoch": 1})", R"({"epoch": 2})"}}));
}

TEST_F(CheckpointDiff, ListsScalars) {
  MadeState a = small_state(7), b = small_state(8);
  b.scalars.skipped_steps = 1;
  b.scalars.micro_batches = 9;
  b.scalars.seed = 5;
  b.scalars.loss_scaler = {1024, 2, 1};
  a.scalars.float8["a"] = {{0.5, 2}, {kInfinity}};
  EXPECT_EQ(between(a, b).scalars,
            (std::vector<ScalarDifference>{{"steps", "7", "8"},
                                           {"skipped steps", "0", "1"},
                                           {"micro-batches", "0", "9"},
                                           {"seed", "18364758544493064720", "5"},
                                           {"loss scaler", "", "1024, 2 clean steps, 1 overflows left"},
                                           {"updates of a", "7", "8"},
                                           {"largest magnitudes of a", "inputs [0.5, 2], gradients [inf]", ""}}));
}

TEST_F(CheckpointDiff, SaysOnceThatAllParametersHaveOtherUpdates) {
  MadeState a = small_state(1), b = a;
  a.scalars.updates = {{"a", 3}, {"b", 3}};
  b.scalars.updates = {{"a", 4}, {"b", 4}};
  EXPECT_EQ(between(a, b).scalars, (std::vector<ScalarDifference>{{"updates of each parameter", "3", "4"}}));
  a.scalars.optimizers = {{"a", "adamw"}, {"b", "adamw"}};
  b.scalars.optimizers = {{"a", "lion"}, {"b", "lion"}};
  EXPECT_EQ(between(a, b).scalars, (std::vector<ScalarDifference>{{"updates of each parameter", "3", "4"},
                                                                  {"optimizer of each parameter", "adamw", "lion"}}));
  a.scalars.optimizers = b.scalars.optimizers = {};
  b.scalars.updates = {{"a", 4}, {"c", 4}};
  EXPECT_EQ(between(a, b).scalars,
            (std::vector<ScalarDifference>{
                {"updates of a", "3", "4"}, {"updates of b", "3", ""}, {"updates of c", "", "4"}}));
}

TEST_F(CheckpointDiff, RefusesWhatIsDamaged) {
  keep(small_state(), "a", {2, 1});
  keep(small_state(), "b", {1, 1});
  env_.bytes_of("b/step-000007/rank-00000.safetensors").back() ^= 1;
  try {
    differences(env_, open("a"), open("b"));
    FAIL() << "it was compared";
  } catch (const CheckpointError& error) {
    EXPECT_TRUE(std::string(error.what()).starts_with("b/step-000007 is damaged: rank-00000.safetensors, bytes "))
        << error.what();
  }
}

}  // namespace zero::test::checkpoint_diff_test
