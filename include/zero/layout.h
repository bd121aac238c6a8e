// Where each parameter lies. Parameters used together form a unit; a unit is one flat array, each
// parameter at a fixed aligned offset, padded so that its length L divides by the number N of ranks.
// A rank owns one of N slices of it: on a mesh, of what its place along the shard axis has, inside first
// (MeshShape::slice_of). Outside this file parameters are spoken of by (name, begin, end); padding never
// leaves it. No torch; immutable and safe to share after construction.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "zero/dtype.h"
#include "zero/mesh_shape.h"

namespace zero {

// A parameter as the layout sees it.
struct ParameterSpec {
  std::string name;
  std::int64_t numel = 0;
  Dtype dtype = Dtype::f32;  // of the stored, computed-with parameter
  bool trainable = true;
  std::string unit;              // parameters of one unit, dtype and trainability lie together
  bool read_in_backward = true;  // false for an embedding's table: its backward needs no values
};

// Elements [begin, end) of the parameter `name`, counted within the parameter.
struct Range {
  std::string name;
  std::int64_t begin = 0;
  std::int64_t end = 0;
  bool operator==(const Range&) const = default;
};

// A parameter's place in its unit, in elements of the unit.
struct Slot {
  std::string name;
  std::int64_t begin = 0;
  std::int64_t numel = 0;
  int index = 0;  // among the ParameterSpecs
  std::int64_t end() const { return begin + numel; }
};

// Elements [begin, begin + count) of a unit's flat array.
struct Slice {
  std::int64_t begin = 0;
  std::int64_t count = 0;
  std::int64_t end() const { return begin + count; }
  bool operator==(const Slice&) const = default;
};

// Slices of the unit that belong to one rank and one parameter.
struct Piece {
  int slot = 0;            // index into slots()
  std::int64_t begin = 0;  // within the unit
  std::int64_t end = 0;
};

class UnitLayout {
 public:
  // Starts are multiples of this many elements (64 bytes of a 16-bit type); slices of half as many.
  static constexpr std::int64_t kAlign = 32;

  // Without parameters, which a Layout adds.
  UnitLayout(std::string name, Dtype dtype, bool trainable, const MeshShape& mesh);

  const std::string& name() const { return name_; }
  Dtype dtype() const { return dtype_; }
  bool trainable() const { return trainable_; }
  bool read_in_backward() const { return read_in_backward_; }
  const MeshShape& mesh() const { return mesh_; }
  int ranks() const { return mesh_.size(Axis::data); }
  const std::vector<Slot>& slots() const { return slots_; }
  const Slot& slot(int index) const { return slots_[static_cast<std::size_t>(index)]; }
  std::int64_t numel() const { return numel_; }                    // elements of its parameters
  std::int64_t length() const { return length_; }                  // with alignment and padding
  std::int64_t shard_length() const { return length_ / ranks(); }  // over `data`
  std::int64_t bytes() const { return length_ * size_of(dtype_); }

  // What `rank` has of a unit that is divided over an axis, `shard` or `data`: the latter is a part of the former.
  Slice slice(Axis over, int rank) const;

  // What `rank` owns where all is divided over `data`, in order.
  std::vector<Piece> pieces(int rank) const;
  // All of it, in order: what a rank owns that holds the unit replicated.
  std::vector<Piece> pieces() const;
  // Those of the elements [begin, end).
  std::vector<Piece> pieces_between(std::int64_t begin, std::int64_t end) const;
  // What `rank` owns, in parameter coordinates.
  std::vector<Range> owned(int rank) const;
  // The stretches of the flat array that belong to no parameter.
  std::vector<std::pair<std::int64_t, std::int64_t>> gaps() const;

 private:
  friend class Layout;
  void append(const ParameterSpec& spec, int index);
  void seal(std::int64_t slice);

  std::string name_;
  Dtype dtype_;
  bool trainable_;
  bool read_in_backward_ = false;
  MeshShape mesh_;
  std::vector<Slot> slots_;
  std::int64_t numel_ = 0;
  std::int64_t length_ = 0;
};

class Layout {
 public:
  // Units in the order of their first parameter; slices are multiples of `slice` elements, a power of two.
  // Throws ConfigError for an empty or repeated name, a negative size, or ranks < 1.
  Layout(std::span<const ParameterSpec> parameters, const MeshShape& mesh, std::int64_t slice = 1);

  const MeshShape& mesh() const { return mesh_; }
  int ranks() const { return mesh_.size(Axis::data); }
  const std::vector<UnitLayout>& units() const { return units_; }
  const UnitLayout& unit(int index) const { return units_[static_cast<std::size_t>(index)]; }
  std::int64_t numel() const { return numel_; }    // Psi: elements of all parameters
  std::int64_t length() const { return length_; }  // with alignment and padding

  struct Location {
    int unit = 0;
    int slot = 0;
    bool operator==(const Location&) const = default;
  };
  // Where a parameter lies. Throws ConfigError for an unknown name.
  Location find(std::string_view name) const;
  // By its number among the ParameterSpecs. Throws std::out_of_range where there is none.
  Location at(int index) const { return locations_.at(static_cast<std::size_t>(index)); }
  // The rank that owns element `element` of a parameter where all is divided over `data`. Throws ConfigError for an
  // unknown name or an element that it has not.
  int owner(std::string_view name, std::int64_t element) const;

 private:
  MeshShape mesh_;
  std::vector<UnitLayout> units_;
  std::vector<Location> locations_;
  std::unordered_map<std::string, int> index_;
  std::int64_t numel_ = 0;
  std::int64_t length_ = 0;
};

}  // namespace zero
