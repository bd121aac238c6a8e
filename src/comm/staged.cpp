#include "comm/staged.h"

#include <array>
#include <utility>
#include <vector>

namespace zero {
namespace {

class Staged final : public CommunicatorImpl {
 public:
  Staged(std::shared_ptr<CommunicatorImpl> inner, Device& device) : inner_(std::move(inner)), device_(device) {}

  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  std::string_view backend() const override { return inner_->backend(); }
  std::chrono::milliseconds time_limit() const override { return inner_->time_limit(); }
  Topology topology() const override { return inner_->topology(); }

  Pending all_gather(ConstView shard, View whole) override {
    return between(shard, whole, [this](ConstView in, View out) { return inner_->all_gather(in, out); });
  }
  Pending reduce_scatter(ConstView whole, View shard) override {
    return between(whole, shard, [this](ConstView in, View out) { return inner_->reduce_scatter(in, out); });
  }
  Pending all_to_all(ConstView input, View output) override {
    return between(input, output, [this](ConstView in, View out) { return inner_->all_to_all(in, out); });
  }
  Pending all_reduce(View values) override {
    return between(values, values, [this](ConstView, View out) { return inner_->all_reduce(out); });
  }
  Pending broadcast(View values, int root) override {
    return between(values, values, [this, root](ConstView, View out) { return inner_->broadcast(out, root); });
  }
  Pending barrier() override { return inner_->barrier(); }
  std::shared_ptr<CommunicatorImpl> split(int color, int key) override {
    return staged(inner_->split(color, key), device_);
  }

 private:
  // On host memory of the same sizes; what is to be both is one array.
  template <class Call>
  Pending between(ConstView in, View out, const Call& call) {
    if (in.device < 0 && out.device < 0) return call(in, out);
    const bool same = in.data == out.data && in.bytes() == out.bytes();
    const View there = room(0, out), sent = same ? there : room(1, {nullptr, in.count, in.dtype});
    device_.to_host(sent.data, in.data, in.bytes());
    Pending done = call(sent, there);
    done.wait();
    device_.from_host(out.data, there.data, out.bytes());
    return Pending(done.moved());
  }

  View room(std::size_t which, const View& like) {
    std::vector<char>& memory = memory_[which];
    const auto bytes = static_cast<std::size_t>(like.bytes());
    if (memory.size() < bytes) memory.resize(bytes);
    return {memory.data(), like.count, like.dtype};
  }

  std::shared_ptr<CommunicatorImpl> inner_;
  Device& device_;
  std::array<std::vector<char>, 2> memory_;
};

}  // namespace

std::shared_ptr<CommunicatorImpl> staged(std::shared_ptr<CommunicatorImpl> inner, Device& device) {
  return std::make_shared<Staged>(std::move(inner), device);
}

}  // namespace zero
