#include "comm/groups.h"

#include "comm/metered.h"
#include "comm/staged.h"

namespace zero {
namespace {

View part_of(View all, std::int64_t index, std::int64_t count) {
  all.data = static_cast<char*>(all.data) + index * count * size_of(all.dtype);
  all.count = count;
  return all;
}

}  // namespace

Groups::Groups(const Communicator& data, const MeshShape& mesh) : mesh_(mesh), data_(data), shard_(data) {
  if (mesh.size(Axis::replica) == 1) return;
  shard_ = data.split(mesh.group(Axis::shard, data.rank()), mesh.at(Axis::shard, data.rank()));
  replica_ = data.split(mesh.group(Axis::replica, data.rank()), mesh.at(Axis::replica, data.rank()));
}

const Communicator& Groups::along(Axis axis) const {
  if (axis == Axis::shard) return shard_;
  return axis == Axis::replica ? replica_ : data_;
}

template <class Wrap>
Groups Groups::wrapped(const Wrap& wrap) const {
  Groups groups = *this;
  for (Communicator* each : {&groups.data_, &groups.shard_, &groups.replica_})
    if (each->size() > 1 || size() == 1) *each = Communicator(wrap(each->impl()));
  return groups;
}

Groups Groups::metered_by(const std::shared_ptr<TrafficMeter>& meter) const {
  return wrapped([&](const auto& group) { return metered(group, meter); });
}

Groups Groups::staged_by(Device& device) const {
  return wrapped([&](const auto& group) { return staged(group, device); });
}

void Groups::gather(ConstView mine, View kept, Axis from, std::optional<Axis> to) const {
  if (from == to) return;
  if (from == Axis::data && replica_.size() > 1) {
    const View part = to ? kept : part_of(kept, shard_.rank(), kept.count / shard_.size());
    replica_.all_gather(mine, part).wait();
    mine = part;
  }
  if (!to) shard_.all_gather(mine, kept).wait();
}

View Groups::reduce(ConstView all, View room) const {
  if (replica_.size() == 1) {
    shard_.reduce_scatter(all, room).wait();
    return room;
  }
  const View mine = part_of(room, replica_.rank(), room.count / replica_.size());
  if (shard_.size() == 1) {
    replica_.reduce_scatter(all, mine).wait();
    return mine;
  }
  shard_.reduce_scatter(all, room).wait();
  replica_.reduce_scatter(room, mine).wait();
  return mine;
}

}  // namespace zero
