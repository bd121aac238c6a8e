#include "zero/mesh_shape.h"

#include <gtest/gtest.h>

#include <set>

#include "zero/error.h"

namespace zero::mesh_shape_test {

TEST(MeshShape, OfRanksAloneIsOneShardGroup) {
  const MeshShape flat = 6;
  EXPECT_EQ(flat.size(), 6);
  EXPECT_EQ(flat.size(Axis::shard), 6);
  EXPECT_EQ(flat.size(Axis::data), 6);
  EXPECT_EQ(flat.size(Axis::replica), 1);
  EXPECT_EQ(flat.text(), "6 ranks");
  EXPECT_EQ(MeshShape(1).text(), "1 rank");
  EXPECT_EQ(flat, MeshShape(6, {.shard = 6}));
  for (int rank = 0; rank < 6; ++rank) EXPECT_EQ(flat.slice_of(rank), rank);
}

TEST(MeshShape, NumbersRanksFromTheInnermostAxisOn) {
  const MeshShape mesh(24, {.shard = 3, .tensor = 2, .pipe = 2});
  EXPECT_EQ(mesh.text(), "24 ranks (2 pipe x 2 replica x 3 shard x 2 tensor)");
  for (int rank = 0; rank < mesh.size(); ++rank) {
    const int again =
        ((mesh.at(Axis::pipe, rank) * 2 + mesh.at(Axis::replica, rank)) * 3 + mesh.at(Axis::shard, rank)) * 2 +
        mesh.at(Axis::tensor, rank);
    EXPECT_EQ(again, rank);
    EXPECT_EQ(mesh.at(Axis::data, rank), mesh.at(Axis::replica, rank) * 3 + mesh.at(Axis::shard, rank));
  }
}

// Those that differ along the axis only.
TEST(MeshShape, GroupsAreTheRanksAlongAnAxis) {
  const MeshShape mesh(24, {.shard = 3, .tensor = 2, .pipe = 2});
  for (const Axis axis : {Axis::pipe, Axis::replica, Axis::shard, Axis::tensor, Axis::data}) {
    std::set<std::pair<int, int>> places;
    for (int rank = 0; rank < mesh.size(); ++rank) places.emplace(mesh.group(axis, rank), mesh.at(axis, rank));
    EXPECT_EQ(places.size(), 24U) << name(axis);
    EXPECT_EQ(places.rbegin()->first, 24 / mesh.size(axis) - 1) << name(axis);
    for (int rank = 0; rank < mesh.size(); ++rank)
      if (const int next = rank + mesh.stride(axis); axis != Axis::data && mesh.at(axis, rank) + 1 < mesh.size(axis)) {
        EXPECT_EQ(mesh.group(axis, next), mesh.group(axis, rank));
        EXPECT_EQ(mesh.at(axis, next), mesh.at(axis, rank) + 1);
      }
  }
}

TEST(MeshShape, SlicesOfAGroupFollowEachOther) {
  const MeshShape mesh(6, {.shard = 3});
  for (int rank = 0; rank < 6; ++rank) {
    EXPECT_EQ(mesh.owner_of(mesh.slice_of(rank)), rank);
    EXPECT_EQ(mesh.slice_of(rank) / 2, mesh.at(Axis::shard, rank));
  }
}

TEST(MeshShape, IsRefusedWhereItIsNoGrid) {
  EXPECT_THROW(MeshShape(6, {.shard = 4}), ConfigError);
  EXPECT_THROW(MeshShape(6, {.shard = 2, .tensor = 2}), ConfigError);
  EXPECT_THROW(MeshShape(2, {.pipe = 4}), ConfigError);
  EXPECT_THROW(MeshShape(0, {}), ConfigError);
  try {
    static_cast<void>(MeshShape(4, {.shard = -2, .tensor = 0}));
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_NE(std::string(error.what()).find("not -2"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("not 0"), std::string::npos) << error.what();
  }
}

}  // namespace zero::mesh_shape_test
