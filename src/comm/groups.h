// The groups of the data axes that an engine's collectives go along: inside a shard group, across the replicas, and
// all. On a flat mesh the shard group is all, and going across costs nothing. No torch.
#pragma once

#include <memory>
#include <optional>

#include "zero/communicator.h"
#include "zero/layout.h"
#include "zero/mesh_shape.h"

namespace zero {

class Device;
class TrafficMeter;

class Groups {
 public:
  // `data` joins the ranks of a mesh without pipe and tensor axes. Collective where it has replicas.
  Groups(const Communicator& data, const MeshShape& mesh);

  const MeshShape& mesh() const { return mesh_; }
  int rank() const { return data_.rank(); }
  int size() const { return data_.size(); }
  // `axis` is data, shard or replica.
  const Communicator& along(Axis axis) const;
  // The same ranks, whose collectives the meter counts.
  Groups metered_by(const std::shared_ptr<TrafficMeter>& meter) const;

  // The same ranks for memory of their devices: joined so where they can be, else through the host's. Collective.
  Groups on_device(Device& device) const;

  // `mine`, this rank's slice over `from`, and the others' in the order of slices: into `kept`, which is all, or this
  // rank's slice over `to`. It may contain `mine` at its place; where both are the same slice, it is there already.
  // On a device what is queued from now on comes behind it, here and below.
  void gather(ConstView mine, View kept, Axis from, std::optional<Axis> to = {}) const;
  // The sum over all ranks of `all`, of which this rank keeps its slice over `data` in `room`, at its place there: see
  // sum_room(). `room` has the accumulation dtype, and may be part of `all`. Returns the slice.
  View reduce(ConstView all, View room) const;

 private:
  Groups staged_by(Device& device) const;
  // Each of them, where there is more than one rank, wrapped.
  template <class Wrap>
  Groups wrapped(const Wrap& wrap) const;

  void finish(Pending operation) const;

  MeshShape mesh_;
  Communicator data_, shard_, replica_;
  Device* device_ = nullptr;  // for whose memory they are; none: the host's
};

}  // namespace zero
