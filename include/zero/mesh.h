// The ranks of a run joined along the axes of a mesh: a communicator for each.
//
//   zero::Mesh mesh(zero::init(), {.shard = 8});  // shard groups of 8 ranks, as many replicas as there are such groups
//   zero::Engine engine(*model, mesh, zero::Plan::hybrid().bf16(), zero::AdamW{});
//
// Thread-safety: that of the communicators.
#pragma once

#include <array>

#include "zero/communicator.h"
#include "zero/mesh_shape.h"
#include "zero/world.h"

namespace zero {

class Mesh {
 public:
  // All ranks along `shard`; nothing is exchanged.
  Mesh(const World& world);  // NOLINT(google-explicit-constructor): where a mesh is wanted, a world is one
  // Collective. Throws ConfigError where the ranks do not make such a grid, CommError where they do not answer.
  Mesh(const World& world, const MeshOptions& options);

  // The mesh of the ranks at this rank's place along the other axes than replica and shard. Nothing is exchanged.
  Mesh data() const;

  const World& world() const { return world_; }
  const MeshShape& shape() const { return shape_; }
  // Ranks along an axis, and this rank's place there.
  int size(Axis axis) const { return shape_.size(axis); }
  int rank(Axis axis) const { return shape_.at(axis, world_.rank()); }
  // This rank's group along an axis.
  const Communicator& operator[](Axis axis) const { return groups_[static_cast<std::size_t>(axis)]; }

 private:
  World world_;
  MeshShape shape_;
  std::array<Communicator, kAxes + 1> groups_;
};

}  // namespace zero
