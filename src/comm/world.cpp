#include "zero/world.h"

#include "base/lifetimes.h"
#include "zero/mesh.h"

namespace zero {

std::shared_ptr<Seats> World::new_seats() {
  return std::make_shared<Seats>();
}

std::shared_ptr<const int> World::take_seat() const {
  return seats_->take();
}

// How many of them share this rank's host, the group knows.
World World::of(const Communicator& some) const {
  World world(*this);
  const Topology topology = some.topology();
  world.communicator_ = some;
  world.local_size_ = topology.ranks_per_host == 0 ? some.size() : topology.ranks_per_host;
  world.local_rank_ = some.rank() % world.local_size_;
  return world;
}

Mesh::Mesh(const World& world) : world_(world), shape_(world.size()) {
  for (const Axis axis : {Axis::shard, Axis::data}) groups_[static_cast<std::size_t>(axis)] = world.communicator();
}

// An axis that has all ranks is the world's own communicator, one of one rank is free.
Mesh::Mesh(const World& world, const MeshOptions& options) : world_(world), shape_(world.size(), options) {
  for (const Axis axis : {Axis::pipe, Axis::replica, Axis::shard, Axis::tensor, Axis::data}) {
    Communicator& group = groups_[static_cast<std::size_t>(axis)];
    if (size(axis) == world.size()) {
      group = world.communicator();
    } else if (size(axis) > 1) {
      group = world.communicator().split(shape_.group(axis, world.rank()), rank(axis));
    }
  }
}

Mesh Mesh::data() const {
  if (size(Axis::data) == world_.size()) return *this;
  Mesh data(world_.of((*this)[Axis::data]));
  data.shape_ = MeshShape(size(Axis::data), {.shard = size(Axis::shard)});
  for (const Axis axis : {Axis::replica, Axis::shard}) data.groups_[static_cast<std::size_t>(axis)] = (*this)[axis];
  return data;
}

}  // namespace zero
