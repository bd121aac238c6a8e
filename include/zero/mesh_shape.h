// The ranks of a run as a grid with named axes, outermost first: pipe, replica, shard, tensor. Neighbours in rank are
// neighbours along the innermost axis, so that with as many ranks a shard group as a host has, what is sharded over
// `shard` stays inside hosts (hybrid sharding: MiCS, section 3; FSDP's HSDP). Data parallelism is replica x shard: its
// ranks have micro-batches of their own.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace zero {

enum class Axis : std::uint8_t {
  pipe,
  replica,
  shard,
  tensor,
  data,  // replica and shard together
};
inline constexpr int kAxes = 4;  // that are not others together
std::string_view name(Axis axis);

struct MeshOptions {
  int shard = 0;  // ranks of a shard group; 0: all that the other axes leave
  int tensor = 1;
  int pipe = 1;
};

// How many ranks each axis has. No torch; immutable.
class MeshShape {
 public:
  // All of them along `shard`. Not checked: a plan's and a layout's faults tell of less than one rank.
  MeshShape(int ranks = 1) : sizes_{1, 1, ranks, 1} {}
  // Throws ConfigError where they do not make a grid.
  MeshShape(int ranks, const MeshOptions& options);

  int size() const { return sizes_[0] * sizes_[1] * sizes_[2] * sizes_[3]; }
  int size(Axis axis) const;
  // Where a rank is along an axis.
  int at(Axis axis, int rank) const;
  // From a rank to its next neighbour along an axis; along `data`, where it has no other within.
  int stride(Axis axis) const;
  // Ranks that differ along `axis` only have the same; it counts from 0.
  int group(Axis axis, int rank) const;

  // What is divided over `data` is cut inside first, then across: shard s of S has the slices s R to (s + 1) R - 1,
  // replica r the r-th of them. `rank` is one of the data axis, `slice` one of size(Axis::data).
  int slice_of(int rank) const { return at(Axis::shard, rank) * size(Axis::replica) + at(Axis::replica, rank); }
  int owner_of(int slice) const {
    return slice % size(Axis::replica) * size(Axis::shard) + slice / size(Axis::replica);
  }

  // "4 ranks", or "4 ranks (2 replica x 2 shard)".
  std::string text() const;
  bool operator==(const MeshShape&) const = default;

 private:
  int size_of(Axis axis) const { return sizes_[static_cast<std::size_t>(axis)]; }

  std::array<int, kAxes> sizes_;
};

}  // namespace zero
