#include "comm/mesh_groups.h"

#include "base/codec.h"
#include "base/elements.h"
#include "base/error_blocks.h"
#include "base/sum_tree.h"
#include "comm/decorators.h"
#include "device/device.h"
#include "partition/wire.h"

namespace zero {
namespace {

// Of memory for the elements `all`, so many by so many of them, that for some.
View part_of(View memory, const Slice& all, const Slice& part, std::int64_t by = 1) {
  if (all.count == 0) return memory;
  const std::int64_t values = memory.count / (all.count / by);
  memory.data = static_cast<char*>(memory.data) + (part.begin - all.begin) / by * values * size_of(memory.dtype);
  memory.count = part.count / by * values;
  return memory;
}

// Of addends `pitch` bytes apart, which are nodes of a tree: in its order, into the first.
void add_up(Device& device, std::span<const LeafRange> nodes, char* addends, std::int64_t pitch, Dtype dtype,
            std::int64_t count) {
  if (nodes.size() < 2) return;
  const std::size_t left = left_half(nodes);
  char* const right = addends + static_cast<std::int64_t>(left) * pitch;
  add_up(device, nodes.first(left), addends, pitch, dtype, count);
  add_up(device, nodes.subspan(left), right, pitch, dtype, count);
  device.run(Add{addends, dtype, right, dtype, count});
}

}  // namespace

MeshGroups::MeshGroups(const Communicator& data, const MeshShape& mesh) : mesh_(mesh), data_(data), shard_(data) {
  if (mesh.size(Axis::replica) == 1) return;
  shard_ = data.split(mesh.group(Axis::shard, data.rank()), mesh.at(Axis::shard, data.rank()));
  replica_ = data.split(mesh.group(Axis::replica, data.rank()), mesh.at(Axis::replica, data.rank()));
}

const Communicator& MeshGroups::along(Axis axis) const {
  if (axis == Axis::shard) return shard_;
  return axis == Axis::replica ? replica_ : data_;
}

template <class Wrap>
MeshGroups MeshGroups::wrapped(const Wrap& wrap) const {
  MeshGroups groups = *this;
  for (Communicator* each : {&groups.data_, &groups.shard_, &groups.replica_})
    if (each->size() > 1 || size() == 1) *each = Communicator(wrap(each->impl()));
  return groups;
}

MeshGroups MeshGroups::metered_by(const std::shared_ptr<TrafficMeter>& meter) const {
  return wrapped([&](const auto& group) { return metered(group, meter); });
}

MeshGroups MeshGroups::once_more() const {
  return {data_.split(0, data_.rank()), mesh_};
}

void MeshGroups::go_first() const {
  for (const Communicator* each : {&data_, &shard_, &replica_}) each->impl()->go_first();
}

MeshGroups MeshGroups::on_device(Device& device) const {
  auto joined = size() == 1 ? nullptr : data_.impl()->on_device(device.index());
  MeshGroups groups = joined == nullptr ? staged_by(device) : MeshGroups(Communicator(std::move(joined)), mesh_);
  groups.device_ = &device;
  return groups;
}

MeshGroups MeshGroups::staged_by(Device& device) const {
  return wrapped([&](const auto& group) { return staged(group, device); });
}

void MeshGroups::finish(Pending operation) const {
  device_ == nullptr ? operation.wait() : device_->follow(std::move(operation));
}

void MeshGroups::hop(const Hop& hop, ConstView mine, View to, const Coder* coder) const {
  if (hop.codec != Wire::native) return coded_sum(hop, mine, to, *coder);
  const Communicator& group = along(hop.axis);
  finish(hop.collective == Collective::all_gather ? group.all_gather(mine, to)
                                                  : group.reduce_scatter(mine, to, hop.leaves));
}

View MeshGroups::carry_out(const Route& route, ConstView mine, View room, const Coder* coder) const {
  const Slice all = route.room();
  if (route.several()) return carry_out_several(route, mine, room, coder);
  if (route.codec != Wire::native && !route.hops.empty()) {
    carry_out_coded(route, mine, room, *coder);
  } else {
    for (const Hop& each : route.hops) {
      const View to = part_of(room, all, each.to);
      hop(each, mine, to, coder);
      mine = to;
    }
  }
  return part_of(room, all, route.to);
}

View MeshGroups::carry_out_several(const Route& route, ConstView mine, View room, const Coder* coder) const {
  for (std::size_t i = 0; i < route.hops.size(); ++i) {
    if (i > 0) room.data = static_cast<char*>(room.data) + room.bytes();
    room.count = route.numbers_behind(i);
    const Hop& each = route.hops[i];
    hop(each, mine, {room.data, each.sums() * each.to.count, room.dtype, room.device}, coder);
    mine = room;
  }
  return room;
}

void MeshGroups::carry_out_coded(const Route& route, ConstView mine, View room, const Coder& coder) const {
  const std::int64_t slices = room.count / mine.count, bytes = coded_bytes(mine.count, mine.dtype, route.codec);
  auto* const codes = static_cast<std::uint8_t*>(coder.codes.data);
  const View all{codes, slices * bytes, Dtype::u8, room.device};
  const auto part = [&](const Slice& slice) { return part_of(all, route.room(), slice, mine.count); };
  const bool adds = differs(route.codec);
  const void* const base = adds ? part_of(room, route.room(), route.from).data : nullptr;
  coder.device.run(
      Encode{mine.data, mine.dtype, static_cast<std::uint8_t*>(part(route.from).data), mine.count, route.codec, base});
  for (const Hop& each : route.hops) hop(each, part(each.from), part(each.to), nullptr);
  for (std::int64_t i = 0; i < slices; ++i)
    coder.device.run(Decode{codes + i * bytes, static_cast<char*>(room.data) + i * mine.count * size_of(room.dtype),
                            room.dtype, mine.count, route.codec, adds});
}

// Each rank sends every other one what it brings to that one's sums, in codes. They are decoded node by node of the
// tree, beside this rank's own, which were not rounded, and added up in its order.
void MeshGroups::coded_sum(const Hop& hop, ConstView mine, View to, const Coder& coder) const {
  const Communicator& group = along(hop.axis);
  Device& device = coder.device;
  const int ranks = group.size(), most = hop.brought(), own = group.rank();
  const std::int64_t count = hop.to.count;
  const CodedSum sizes(count, hop.kept, hop.codec, ranks, most);
  auto* const codes = static_cast<std::uint8_t*>(coder.codes.data);
  auto* const arrived = codes + sizes.sent;
  auto* const values = reinterpret_cast<char*>(arrived) + sizes.sent;
  const GroupSum sum(hop.leaves, ranks);
  const auto addend = [&](int part, int rank) {
    return at_element(mine.data, (part * ranks + rank) * count, mine.dtype);
  };
  const auto errors = [&](int rank) {
    const std::int64_t before = rank < own ? rank : rank - 1;
    return coder.errors == nullptr ? nullptr : coder.errors + before * bytes_of_codes<ErrorBlocks>(count);
  };
  for (int part = 0; part < sum.brought(own); ++part)
    for (int rank = 0; rank < ranks; ++rank)
      if (rank != own)
        device.run(Encode{addend(part, rank), mine.dtype, codes + (rank * most + part) * sizes.code, count, hop.codec,
                          /*base=*/nullptr, errors(rank)});
  const auto all = [&](std::uint8_t* data) { return View{data, ranks * most * sizes.code, Dtype::u8, to.device}; };
  finish(group.all_to_all(all(codes), all(arrived)));
  const SumParts parts(sum);
  for (std::size_t i = 0; i < parts.parts.size(); ++i) {
    const auto [rank, number] = parts.parts[i];
    char* const value = values + static_cast<std::int64_t>(i) * sizes.value;
    if (rank == own)
      device.run(Convert{addend(number, own), mine.dtype, value, hop.kept, count});
    else
      device.run(Decode{arrived + (rank * most + number) * sizes.code, value, hop.kept, count, hop.codec});
  }
  parts.each_sum([&](std::size_t which, std::size_t first, std::size_t number) {
    char* const sums = values + static_cast<std::int64_t>(first) * sizes.value;
    add_up(device, std::span(parts.nodes).subspan(first, number), sums, sizes.value, hop.kept, count);
    device.copy(at_element(to.data, static_cast<std::int64_t>(which) * count, hop.kept), sums, sizes.value);
  });
}

}  // namespace zero
