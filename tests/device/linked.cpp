#include "device/linked.h"

#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <cstring>
#include <utility>

#include "comm/on_devices.h"
#include "comm/tree_sum.h"
#include "device/runtime.h"
#include "meetings.h"
#include "zero/error.h"

namespace zero::test {
namespace {

using accelerator::Access;
using accelerator::kType;

char* bytes_at(const void* data, std::int64_t offset) {
  return static_cast<char*>(const_cast<void*>(data)) + offset;
}

Access access(const void* data, std::int64_t bytes, bool writes) {
  return {data, static_cast<std::size_t>(bytes), writes};
}

class OnStream final : public Pending::State {
 public:
  OnStream(const c10::Stream& stream, const Moved& moved) : event_(kType), moved_(moved) { event_.record(stream); }
  void wait() override { event_.synchronize(); }
  void wait_in(const Stream& stream) override {
    event_.block(c10::Stream::unpack3(stream.id, static_cast<c10::DeviceIndex>(stream.device_index),
                                      static_cast<c10::DeviceType>(stream.device_type)));
  }
  bool done() override { return event_.query(); }
  Moved moved() const override { return moved_; }

 private:
  c10::Event event_;
  Moved moved_;
};

// The host's threads meet only to tell each other where the memory is and when it is ready.
class Linked final : public CommunicatorImpl {
 public:
  Linked(std::shared_ptr<CommunicatorImpl> host, int device)
      : host_(std::move(host)),
        device_(device),
        stream_(c10::impl::VirtualGuardImpl(kType).getNewStream(
            accelerator::device(static_cast<c10::DeviceIndex>(device)))) {}

  int rank() const override { return host_->rank(); }
  int size() const override { return host_->size(); }
  std::string_view backend() const override { return "linked"; }
  std::chrono::milliseconds time_limit() const override { return host_->time_limit(); }

  Pending all_gather(ConstView shard, View whole) override {
    return carry_out(shard, [&](const std::vector<const void*>& inputs) {
      Kernel kernel;
      for (int r = 0; r < size(); ++r) kernel.copy(inputs, r, bytes_at(whole.data, r * shard.bytes()), shard.bytes());
      return kernel;
    });
  }
  Pending reduce_scatter(ConstView whole, View shard) override {
    return carry_out(whole, [&](const std::vector<const void*>& inputs) {
      Kernel kernel;
      kernel.ranges.push_back(access(shard.data, shard.bytes(), true));
      std::vector<const void*> slices;
      for (const void* input : inputs) {
        const char* const slice = bytes_at(input, rank() * shard.count * size_of(whole.dtype));
        kernel.ranges.push_back(access(slice, shard.count * size_of(whole.dtype), false));
        slices.push_back(accelerator::shadow(slice));
      }
      kernel.tasks.emplace_back([slices, dtype = whole.dtype, to = accelerator::shadow(shard.data),
                                 count = shard.count] { tree_sum(slices, dtype, to, count); });
      return kernel;
    });
  }
  Pending broadcast(View values, int root) override {
    return carry_out(values, [&](const std::vector<const void*>& inputs) {
      Kernel kernel;
      if (rank() != root) kernel.copy(inputs, root, bytes_at(values.data, 0), values.bytes());
      return kernel;
    });
  }
  Pending all_reduce(View) override { throw CommError("linked devices have no all_reduce"); }
  Pending all_to_all(ConstView, View) override { throw CommError("linked devices have no all_to_all"); }
  Pending barrier() override { return host_->barrier(); }
  std::shared_ptr<CommunicatorImpl> split(int color, int key) override {
    return std::make_shared<Linked>(host_->split(color, key), device_);
  }

 private:
  struct Kernel {
    std::vector<Access> ranges = {};
    std::vector<std::function<void()>> tasks = {};

    void copy(const std::vector<const void*>& inputs, int rank, char* to, std::int64_t bytes) {
      const void* const from = inputs[static_cast<std::size_t>(rank)];
      if (from == to || bytes == 0) return;
      ranges.push_back(access(from, bytes, false));
      ranges.push_back(access(to, bytes, true));
      tasks.emplace_back([from = accelerator::shadow(from), to = accelerator::shadow(to), bytes] {
        std::memcpy(to, from, static_cast<std::size_t>(bytes));
      });
    }
  };
  struct Place {
    const void* input;
    const c10::Event* event;
  };

  std::vector<Place> tell(const void* input, const c10::Event& event) {
    const Place mine{input, &event};
    std::vector<Place> all(static_cast<std::size_t>(size()));
    constexpr std::int64_t kBytes = sizeof(Place);
    host_->all_gather({&mine, kBytes, Dtype::u8}, {all.data(), kBytes * size(), Dtype::u8}).wait();
    return all;
  }

  // Behind what every rank had queued before; and what a rank queues then comes behind it on all ranks.
  template <class Plan>
  Pending carry_out(ConstView input, const Plan& plan) {
    if (input.device != device_) throw CommError("memory outside of device " + std::to_string(device_));
    c10::Event ready(kType), done(kType);
    ready.record(accelerator::current_stream(static_cast<c10::DeviceIndex>(device_)));
    std::vector<const void*> inputs;
    for (const Place& each : tell(input.data, ready)) {
      inputs.push_back(each.input);
      each.event->block(stream_);
    }
    Kernel kernel = plan(inputs);
    accelerator::enqueue(stream_, kernel.ranges, [tasks = std::move(kernel.tasks)] {
      for (const auto& task : tasks) task();
    });
    done.record(stream_);
    for (const Place& each : tell(nullptr, done)) each.event->block(stream_);
    host_->barrier().wait();  // before an event goes
    return Pending(std::make_shared<OnStream>(stream_, Moved{.bytes = moved(kernel.ranges)}));
  }

  std::int64_t moved(const std::vector<Access>& ranges) const {
    std::int64_t bytes = 0;
    for (const Access& range : ranges)
      if (!range.writes && !accelerator::of_device(range.pointer, static_cast<c10::DeviceIndex>(device_)))
        bytes += static_cast<std::int64_t>(range.bytes);
    return bytes;
  }

  std::shared_ptr<CommunicatorImpl> host_;
  int device_;
  c10::Stream stream_;
};

World reaching(const World& world, std::function<std::uint64_t(int device)> identity) {
  if (world.size() == 1) return world;
  static auto* const kMeetings = new Meetings;
  const DeviceReach reach{std::move(identity),
                          [](const std::string& name, int rank, int size, int device, const HostMap&) {
                            return std::make_shared<Linked>(kMeetings->join(name, rank, size), device);
                          }};
  return {Communicator(reaching_devices(world.communicator().impl(), reach)), world.local_rank(), world.local_size()};
}

}  // namespace

World linked(const World& world) {
  return reaching(world, [](int device) { return static_cast<std::uint64_t>(device); });
}

World sharing_devices(const World& world) {
  return reaching(world, [](int device) { return static_cast<std::uint64_t>(device / 2); });
}

}  // namespace zero::test
