#include "device/linked.h"

#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <cstring>
#include <utility>

#include "comm/backend.h"
#include "comm/decorators.h"
#include "comm/hosts.h"
#include "comm/tree_sum.h"
#include "device/runtime.h"
#include "device/torch/dtypes.h"
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
  Linked(std::shared_ptr<CommunicatorImpl> host, int device, const HostMap& hosts)
      : host_(std::move(host)),
        device_(device),
        tally_(hosts, host_->rank()),
        stream_(c10::impl::VirtualGuardImpl(kType).getNewStream(
            accelerator::device(static_cast<c10::DeviceIndex>(device)))) {}

  int rank() const override { return host_->rank(); }
  int size() const override { return host_->size(); }
  Topology topology() const override { return tally_.hosts().topology(rank()); }
  std::string_view backend() const override { return "linked"; }
  std::chrono::milliseconds time_limit() const override { return host_->time_limit(); }

  Pending run(const CollectiveCall& call) override {
    switch (call.collective) {
      case Collective::all_gather:
        return carry_out(call.in, [&](const Addresses& inputs) { return gather(inputs, call.in, call.out); });
      case Collective::reduce_scatter:
        return carry_out(call.in, [&](const Addresses& inputs) { return reduce(inputs, call); });
      case Collective::all_to_all:
        return carry_out(call.in, [&](const Addresses& inputs) { return exchange(inputs, call.out); });
      case Collective::broadcast:
        return carry_out(call.in, [&](const Addresses& inputs) { return take(inputs, call.root, call.out); });
      case Collective::all_reduce: return sum(call.out);
      case Collective::barrier: return host_->run(call);
      default: throw CommError("linked devices have no " + std::string(name(call.collective)));
    }
  }
  std::shared_ptr<CommunicatorImpl> split(int color, int key) override {
    const std::vector<int> members = split_group(gather_each<SplitCall>(*host_, {color, key}), rank());
    return std::make_shared<Linked>(host_->split(color, key), device_, tally_.hosts().of(members));
  }

 private:
  using Addresses = std::vector<const void*>;

  struct Kernel {
    std::vector<Access> ranges = {};
    std::vector<std::function<void()>> tasks = {};

    void copy(const Addresses& inputs, int rank, char* to, std::int64_t bytes, std::int64_t begin = 0) {
      const void* const from = bytes_at(inputs[static_cast<std::size_t>(rank)], begin);
      if (from == to || bytes == 0) return;
      ranges.push_back(access(from, bytes, false));
      ranges.push_back(access(to, bytes, true));
      tasks.emplace_back([from = accelerator::shadow(from), to = accelerator::shadow(to), bytes] {
        std::memcpy(to, from, static_cast<std::size_t>(bytes));
      });
    }
  };
  Kernel gather(const Addresses& inputs, ConstView shard, View whole) {
    Kernel kernel;
    for (int r = 0; r < size(); ++r) {
      kernel.copy(inputs, r, bytes_at(whole.data, r * shard.bytes()), shard.bytes());
      tally_.from(r, shard.bytes());
    }
    return kernel;
  }
  Kernel reduce(const Addresses& inputs, const CollectiveCall& call) {
    const SumParts sum(GroupSum(call.leaves, size()));
    const std::int64_t count = call.out.count / std::ssize(sum.sums), bytes = count * size_of(call.in.dtype);
    Kernel kernel;
    kernel.ranges.push_back(access(call.out.data, call.out.bytes(), true));
    Addresses slices;
    for (const SumParts::Part& part : sum.parts) {
      const char* const slice =
          bytes_at(inputs[static_cast<std::size_t>(part.rank)], (part.number * size() + rank()) * bytes);
      kernel.ranges.push_back(access(slice, bytes, false));
      slices.push_back(accelerator::shadow(slice));
      tally_.from(part.rank, bytes);
    }
    kernel.tasks.emplace_back([sum, slices, dtype = call.in.dtype, to = accelerator::shadow(call.out.data), count] {
      group_sum(sum, slices, dtype, to, count, count);
    });
    return kernel;
  }
  Kernel exchange(const Addresses& inputs, View slices) {
    const std::int64_t bytes = slices.bytes() / size();
    Kernel kernel;
    for (int r = 0; r < size(); ++r) {
      kernel.copy(inputs, r, bytes_at(slices.data, r * bytes), bytes, rank() * bytes);
      tally_.from(r, bytes);
    }
    return kernel;
  }
  Kernel take(const Addresses& inputs, int root, View values) {
    Kernel kernel;
    if (rank() != root) kernel.copy(inputs, root, bytes_at(values.data, 0), values.bytes());
    tally_.from(root, values.bytes());
    return kernel;
  }

  // Every rank adds up a slice, and has the others' from them.
  Pending sum(View values) {
    const std::int64_t length = (values.count + size() - 1) / size();
    const auto options = at::TensorOptions(accelerator::device(static_cast<c10::DeviceIndex>(device_)));
    const at::ScalarType narrow = scalar_type(values.dtype), wide = scalar_type(accumulation(values.dtype));
    const at::Tensor all = at::zeros({length * size()}, options.dtype(narrow));
    const at::Tensor own = at::empty({length}, options.dtype(wide));
    const at::Tensor here = at::from_blob(values.data, {values.count}, options.dtype(narrow));
    all.narrow(0, 0, values.count).copy_(here);
    Moved moved =
        follow(run({Collective::reduce_scatter, view(all, values.dtype), view(own, accumulation(values.dtype))}));
    const at::Tensor rounded = own.to(narrow);
    moved += follow(run({Collective::all_gather, view(rounded, values.dtype), view(all, values.dtype)}));
    here.copy_(all.narrow(0, 0, values.count));
    return Pending(std::make_shared<OnStream>(current(), moved));
  }
  View view(const at::Tensor& values, Dtype dtype) const {
    return {values.mutable_data_ptr(), values.numel(), dtype, device_};
  }
  c10::Stream current() const { return accelerator::current_stream(static_cast<c10::DeviceIndex>(device_)); }
  Moved follow(Pending operation) {
    const c10::Stream stream = current();
    operation.wait({stream.id(), stream.device_index(), static_cast<int>(stream.device_type())});
    return operation.moved();
  }

  struct Place {
    const void* input;
    const c10::Event* event;
  };

  std::vector<Place> tell(const void* input, const c10::Event& event) {
    const Place mine{input, &event};
    std::vector<Place> all(static_cast<std::size_t>(size()));
    constexpr std::int64_t kBytes = sizeof(Place);
    const View every{all.data(), kBytes * size(), Dtype::u8};
    host_->run({Collective::all_gather, {&mine, kBytes, Dtype::u8}, every}).wait();
    return all;
  }

  // Behind what every rank had queued before; and what a rank queues then comes behind it on all ranks.
  template <class Plan>
  Pending carry_out(ConstView input, const Plan& plan) {
    if (input.device != device_) throw CommError("memory outside of device " + std::to_string(device_));
    c10::Event ready(kType), done(kType);
    ready.record(accelerator::current_stream(static_cast<c10::DeviceIndex>(device_)));
    Addresses inputs;
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
    host_->run({Collective::barrier}).wait();  // before an event goes
    return Pending(std::make_shared<OnStream>(stream_, tally_.take()));
  }

  std::shared_ptr<CommunicatorImpl> host_;
  int device_;
  Tally tally_;
  c10::Stream stream_;
};

World reaching(const World& world, std::function<std::uint64_t(int device)> identity) {
  if (world.size() == 1) return world;
  static auto* const kMeetings = new Meetings;
  const DeviceReach reach{std::move(identity),
                          [](const std::string& name, int rank, int size, int device, const HostMap& hosts) {
                            return std::make_shared<Linked>(kMeetings->join(name, rank, size), device, hosts);
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
