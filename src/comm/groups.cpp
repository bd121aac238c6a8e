#include "comm/groups.h"

#include "comm/decorators.h"
#include "device/device.h"

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

Groups Groups::on_device(Device& device) const {
  auto joined = size() == 1 ? nullptr : data_.impl()->on_device(device.index());
  Groups groups = joined == nullptr ? staged_by(device) : Groups(Communicator(std::move(joined)), mesh_);
  groups.device_ = &device;
  return groups;
}

Groups Groups::staged_by(Device& device) const {
  return wrapped([&](const auto& group) { return staged(group, device); });
}

void Groups::finish(Pending operation) const {
  device_ == nullptr ? operation.wait() : device_->follow(std::move(operation));
}

void Groups::gather(ConstView mine, View kept, Axis from, std::optional<Axis> to) const {
  if (from == to) return;
  if (from == Axis::data && replica_.size() > 1) {
    const View part = to ? kept : part_of(kept, shard_.rank(), kept.count / shard_.size());
    finish(replica_.all_gather(mine, part));
    mine = part;
  }
  if (!to) finish(shard_.all_gather(mine, kept));
}

View Groups::reduce(ConstView all, View room) const {
  if (replica_.size() == 1) {
    finish(shard_.reduce_scatter(all, room));
    return room;
  }
  const View mine = part_of(room, replica_.rank(), room.count / replica_.size());
  if (shard_.size() == 1) {
    finish(replica_.reduce_scatter(all, mine));
    return mine;
  }
  finish(shard_.reduce_scatter(all, room));
  finish(replica_.reduce_scatter(room, mine));
  return mine;
}

}  // namespace zero
