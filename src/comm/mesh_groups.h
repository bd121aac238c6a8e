// The groups of the data axes that an engine's collectives go along: inside a shard group, across the replicas, and
// all. On a flat mesh the shard group is all, and going across costs nothing. No torch.
#pragma once

#include <memory>

#include "partition/routes.h"
#include "zero/communicator.h"
#include "zero/layout.h"
#include "zero/mesh_shape.h"

namespace zero {

class Device;
class TrafficMeter;

// What codes are made and read by, and where those of all ranks lie on their way (base/codec.h). Of a gather every
// rank, the owner too, goes on with what was decoded; of differences, with what they were added to, which is where the
// route ends. Of a sum in codes there is memory for a CodedSum, and, where errors are fed back (Routes::errors), for
// those.
struct Coder {
  Device& device;
  View codes;
  std::uint8_t* errors = nullptr;
};

class MeshGroups {
 public:
  // `data` joins the ranks of a mesh without pipe and tensor axes. Collective where it has replicas.
  MeshGroups(const Communicator& data, const MeshShape& mesh);

  const MeshShape& mesh() const { return mesh_; }
  int rank() const { return data_.rank(); }
  int size() const { return data_.size(); }
  // `axis` is data, shard or replica.
  const Communicator& along(Axis axis) const;
  // The same ranks, whose collectives the meter counts.
  MeshGroups metered_by(const std::shared_ptr<TrafficMeter>& meter) const;

  // The same ranks in groups of their own, whose operations go beside these. Collective.
  MeshGroups once_more() const;
  // See CommunicatorImpl::go_first().
  void go_first() const;
  // The same ranks for memory of their devices: joined so where they can be, else through the host's. Collective.
  MeshGroups on_device(Device& device) const;

  // Along the hops of this rank's route. `mine` is what the route begins with; each hop ends in its part of `room`, the
  // memory of Route::room(), of which `mine` may be a part, at its place, and which may be a part of `mine`; where
  // several sums are on their way, of Route::numbers() beside it. Returns what the route ends with, one sum behind the
  // other, which is there already where there is no hop. Of values in the dtype in which they are sent, `room` in that
  // in which they arrive. On a device what is queued from now on comes behind it. Where the route or a hop has a codec,
  // by the coder, whose codes have room for all of `room`, or for a CodedSum.
  View carry_out(const Route& route, ConstView mine, View room, const Coder* coder = nullptr) const;

 private:
  MeshGroups staged_by(Device& device) const;
  // Each of them, where there is more than one rank, wrapped.
  template <class Wrap>
  MeshGroups wrapped(const Wrap& wrap) const;

  View carry_out_several(const Route& route, ConstView mine, View room, const Coder* coder) const;
  void carry_out_coded(const Route& route, ConstView mine, View room, const Coder& coder) const;
  void hop(const Hop& hop, ConstView mine, View to, const Coder* coder) const;
  void coded_sum(const Hop& hop, ConstView mine, View to, const Coder& coder) const;
  void finish(Pending operation) const;

  MeshShape mesh_;
  Communicator data_, shard_, replica_;
  Device* device_ = nullptr;  // for whose memory they are; none: the host's
};

}  // namespace zero
