#include "comm/staged.h"

#include <array>
#include <utility>

#include "comm/decorated.h"

namespace zero {
namespace {

class Staged final : public Decorated {
 public:
  Staged(std::shared_ptr<CommunicatorImpl> inner, Device& device) : Decorated(std::move(inner)), device_(device) {}

  Pending all_gather(ConstView shard, View whole) override {
    return between(shard, whole, [this](ConstView in, View out) { return inner().all_gather(in, out); });
  }
  Pending reduce_scatter(ConstView whole, View shard) override {
    return between(whole, shard, [this](ConstView in, View out) { return inner().reduce_scatter(in, out); });
  }
  Pending all_to_all(ConstView input, View output) override {
    return between(input, output, [this](ConstView in, View out) { return inner().all_to_all(in, out); });
  }
  Pending all_reduce(View values) override {
    return between(values, values, [this](ConstView, View out) { return inner().all_reduce(out); });
  }
  Pending broadcast(View values, int root) override {
    return between(values, values, [this, root](ConstView, View out) { return inner().broadcast(out, root); });
  }
  Pending barrier() override { return inner().barrier(); }
  std::shared_ptr<CommunicatorImpl> split(int color, int key) override {
    return staged(inner().split(color, key), device_);
  }

 private:
  // On host memory of the same sizes; what is to be both is one array.
  template <class Call>
  Pending between(ConstView in, View out, const Call& call) {
    const bool same = in.data == out.data && in.bytes() == out.bytes();
    const View there = room(0, out), sent = same ? there : room(1, {nullptr, in.count, in.dtype});
    device_.to_host(sent.data, in.data, in.bytes());
    Pending done = call(sent, there);
    done.wait();
    device_.from_host(out.data, there.data, out.bytes());
    return Pending(done.moved());
  }

  View room(std::size_t which, const View& like) {
    Room& room = rooms_[which];
    if (room.bytes < like.bytes()) {
      room.memory.reset();
      room.memory = device_.take_of_host(static_cast<std::size_t>(like.bytes()));
      room.bytes = like.bytes();
    }
    return {room.bytes == 0 ? nullptr : room.memory->data(), like.count, like.dtype};
  }

  struct Room {
    std::unique_ptr<Block::Place> memory = {};
    std::int64_t bytes = 0;
  };

  Device& device_;
  std::array<Room, 2> rooms_;
};

}  // namespace

std::shared_ptr<CommunicatorImpl> staged(std::shared_ptr<CommunicatorImpl> inner, Device& device) {
  return std::make_shared<Staged>(std::move(inner), device);
}

}  // namespace zero
