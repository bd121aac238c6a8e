#include "zero/mesh_shape.h"

#include <algorithm>
#include <vector>

#include "base/text.h"
#include "zero/error.h"

namespace zero {

std::string_view name(Axis axis) {
  switch (axis) {
    case Axis::pipe: return "pipe";
    case Axis::replica: return "replica";
    case Axis::shard: return "shard";
    case Axis::tensor: return "tensor";
    case Axis::data: return "data";
  }
  return "?";
}

MeshShape::MeshShape(int ranks, const MeshOptions& options) : MeshShape(ranks) {
  std::vector<std::string> faults;
  const auto expect = [&](bool good, const char* what, int value) {
    if (!good) faults.push_back(std::string(what) + ", not " + std::to_string(value));
  };
  expect(ranks >= 1, "it has at least 1 rank", ranks);
  expect(options.shard >= 0, "a shard group has at least 1 rank (0: as many as there are)", options.shard);
  expect(options.tensor >= 1, "the tensor axis has at least 1 rank", options.tensor);
  expect(options.pipe >= 1, "the pipe axis has at least 1 rank", options.pipe);
  if (!faults.empty()) throw ConfigError("no mesh: " + joined(faults, "; "));
  const int others = options.tensor * options.pipe;
  const int data = ranks / others;  // NOLINT(clang-analyzer-core.DivideZero): sizes below 1 are faults
  const int shard = options.shard == 0 ? data : options.shard;
  if (ranks % others != 0 || shard == 0 || data % shard != 0)
    throw ConfigError("no mesh: " + std::to_string(ranks) + " ranks are not a multiple of " +
                          std::to_string(std::max(shard, 1) * others) + ", the ranks of its inner axes",
                      "give the shard, tensor and pipe axes sizes whose product divides the number of ranks");
  sizes_ = {options.pipe, data / shard, shard, options.tensor};
}

int MeshShape::size(Axis axis) const {
  return axis == Axis::data ? size_of(Axis::replica) * size_of(Axis::shard) : size_of(axis);
}

int MeshShape::stride(Axis axis) const {
  int ranks = 1;
  for (int inner = kAxes - 1; inner > static_cast<int>(axis == Axis::data ? Axis::shard : axis); --inner)
    ranks *= sizes_[static_cast<std::size_t>(inner)];
  return ranks;
}

int MeshShape::at(Axis axis, int rank) const {
  return rank / stride(axis) % size(axis);
}

int MeshShape::group(Axis axis, int rank) const {
  const int inside = stride(axis);
  return rank / (inside * size(axis)) * inside + rank % inside;
}

std::string MeshShape::text() const {
  const auto ranks = [](int count) { return std::to_string(count) + (count == 1 ? " rank" : " ranks"); };
  if (size() == size(Axis::shard)) return ranks(size());
  std::string text;
  for (int i = 0; i < kAxes; ++i) {
    const auto axis = static_cast<Axis>(i);
    if (size(axis) > 1)
      text += (text.empty() ? "" : " x ") + std::to_string(size(axis)) + " " + std::string(name(axis));
  }
  return ranks(size()) + " (" + text + ")";
}

}  // namespace zero
