// Tensors of tiles as those of the whole parameter, and back.
#include "partition/tiles.h"

#include <gtest/gtest.h>

#include <array>
#include <numeric>

namespace zero::tiles_test {

// Rows 0, 1 and 2 to 4 of five, and one of two: not all of them are there.
Tiles some_tiles() {
  return {{"a.0", {"a", 0, 2, 5}}, {"a.1", {"a", 2, 3, 5}}, {"b.1", {"b", 1, 1, 2}}};
}

StateTensor tensor(const std::string& name, StateKind kind, std::vector<std::int64_t> shape,
                   const std::string& part = {}, Dtype dtype = Dtype::f32) {
  return {{name, kind, part}, dtype, std::move(shape)};
}

using enum StateKind;

TEST(JoinedState, HasRowsInTheirOrder) {
  StateScalars scalars{.updates = {{"a.0", 4}, {"a.1", 4}, {"b.1", 1}},
                       .optimizers = {{"a.0", "lion"}, {"a.1", "lion"}, {"b.1", "sgd"}}};
  const JoinedState state =
      joined({tensor("a.1", main_weight, {3, 7}), tensor("a.1", row, {3, 1}), tensor("a.0", main_weight, {2, 7}),
              tensor("a.0", row, {2, 1}), tensor("b.1", main_weight, {1, 7}), tensor("c", parameter, {9})},
             scalars, some_tiles());
  EXPECT_EQ(state.tensors, (std::vector{tensor("a", main_weight, {5, 7}), tensor("a", row, {5, 1}),
                                        tensor("b.1", main_weight, {1, 7}), tensor("c", parameter, {9})}));
  const std::vector<std::pair<std::size_t, std::int64_t>> expected{{0, 14}, {1, 2}, {0, 0}, {1, 0}, {2, 0}, {3, 0}};
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(state.places[i]->tensor, expected[i].first) << i;
    EXPECT_EQ(state.places[i]->stretches.first, expected[i].second) << i;
  }
  EXPECT_EQ(scalars.updates, (std::map<std::string, std::int64_t>{{"a", 4}, {"b.1", 1}}));
  EXPECT_EQ(scalars.optimizers, (std::map<std::string, std::string>{{"a", "lion"}, {"b.1", "sgd"}}));
}

TEST(JoinedState, LeavesToATileWhatIsItsOwn) {
  StateScalars scalars{.updates = {{"a.0", 1}, {"a.1", 1}}};
  const std::vector<StateTensor> own{tensor("a.0", moment, {2, 7}, "0", Dtype::u8),
                                     tensor("a.1", moment, {3, 7}, "0", Dtype::u8),
                                     tensor("a.0", scale, {1}, "0"),
                                     tensor("a.1", scale, {1}, "0"),
                                     tensor("a.0", column, {1, 7}),
                                     tensor("a.1", column, {1, 7}),
                                     tensor("a.0", moment, {2, 7}, "1")};
  EXPECT_EQ(joined(own, scalars, some_tiles()).tensors, own);
  scalars.updates = {{"a.0", 1}, {"a.1", 2}};
  const std::vector<StateTensor> apart{tensor("a.0", moment, {2, 7}, "0"), tensor("a.1", moment, {3, 7}, "0")};
  EXPECT_EQ(joined(apart, scalars, some_tiles()).tensors, apart);
}

TEST(JoinedState, HasTheFirstTilesNumbers) {
  StateScalars scalars{.updates = {{"a.0", 1}, {"a.1", 1}}};
  const JoinedState state =
      joined({tensor("a.0", optimizer, {}, "step"), tensor("a.1", optimizer, {}, "step")}, scalars, some_tiles());
  EXPECT_EQ(state.tensors, (std::vector{tensor("a", optimizer, {}, "step")}));
  EXPECT_TRUE(state.places[0] && !state.places[1]);
}

// The second half of four columns, of which another rank has the first.
Tiles a_cut() {
  return {{"a", {.whole = "a", .begin = 2, .rows = 2, .all = 4, .dim = 1, .cut = true}}};
}

TEST(JoinedState, HasTheStretchesOfWhatIsCut) {
  StateScalars scalars{.updates = {{"a", 4}}, .optimizers = {{"a", "lion"}}};
  const JoinedState state = joined({tensor("a", main_weight, {3, 2})}, scalars, a_cut());
  EXPECT_EQ(state.tensors, (std::vector{tensor("a", main_weight, {3, 4})}));
  EXPECT_EQ(scalars.updates, (std::map<std::string, std::int64_t>{{"a", 4}}));
  std::vector<std::array<std::int64_t, 3>> told;
  state.places[0]->stretches.each(1, 6, [&](std::int64_t begin, std::int64_t end, std::int64_t at) {
    told.push_back({begin, end, at});
  });
  EXPECT_EQ(told, (std::vector<std::array<std::int64_t, 3>>{{3, 4, 0}, {6, 8, 1}, {10, 12, 3}}));
}

struct Numbers final : StateSource {
  const StateScalars& scalars() const override { return scalars_; }
  const std::vector<StateTensor>& tensors() const override { return tensors_; }
  void read(std::size_t tensor, std::int64_t begin, std::int64_t end, void* values) override {
    std::iota(static_cast<float*>(values), static_cast<float*>(values) + (end - begin),
              static_cast<float>(static_cast<std::int64_t>(tensor) * 100 + begin));
  }
  StateScalars scalars_;
  std::vector<StateTensor> tensors_;
};

TEST(TiledSource, TellsRowsOfTheWhole) {
  Numbers source;
  source.scalars_.updates = {{"a", 3}, {"c", 1}};
  source.scalars_.optimizers = {{"a", "lion"}, {"c", "sgd"}};
  source.scalars_.float8 = {{"a", {{1.0}, {2.0}}}};
  source.tensors_ = {tensor("c", parameter, {4}), tensor("a", parameter, {5, 3}), tensor("a", optimizer, {}, "step"),
                     tensor("a", column, {1, 3}), tensor("a", buffer, {2})};
  TiledSource tiled(source, some_tiles());
  EXPECT_EQ(tiled.tensors(), (std::vector{tensor("c", parameter, {4}), tensor("a.0", parameter, {2, 3}),
                                          tensor("a.1", parameter, {3, 3}), tensor("a.0", optimizer, {}, "step"),
                                          tensor("a.1", optimizer, {}, "step"), tensor("a.0", column, {1, 3}),
                                          tensor("a", buffer, {2})}));
  EXPECT_EQ(tiled.scalars().updates, (std::map<std::string, std::int64_t>{{"a.0", 3}, {"a.1", 3}, {"c", 1}}));
  EXPECT_EQ(tiled.scalars().optimizers,
            (std::map<std::string, std::string>{{"a.0", "lion"}, {"a.1", "lion"}, {"c", "sgd"}}));
  EXPECT_EQ(tiled.scalars().float8.size(), 2U);
  std::vector<float> values(2);
  tiled.read(2, 1, 3, values.data());
  EXPECT_EQ(values, (std::vector<float>{107, 108}));
  tiled.read(4, 0, 1, values.data());
  EXPECT_EQ(values.front(), 200);
}

TEST(TiledSource, TellsWhatIsCutOfTheWhole) {
  Numbers source;
  source.scalars_.updates = {{"a", 3}};
  source.tensors_ = {tensor("a", parameter, {3, 4})};
  TiledSource tiled(source, a_cut());
  EXPECT_EQ(tiled.tensors(), (std::vector{tensor("a", parameter, {3, 2})}));
  EXPECT_EQ(tiled.scalars().updates, (std::map<std::string, std::int64_t>{{"a", 3}}));
  std::vector<float> values(5);
  tiled.read(0, 1, 6, values.data());
  EXPECT_EQ(values, (std::vector<float>{3, 6, 7, 10, 11}));
}

}  // namespace zero::tiles_test
