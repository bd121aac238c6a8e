#include "comm/decorators.h"

#include <array>
#include <chrono>
#include <set>
#include <vector>

#include "comm/backend.h"
#include "device/device.h"
#include "zero/error.h"

namespace zero {
namespace {

using Clock = std::chrono::steady_clock;

class Timed final : public Pending::State {
 public:
  Timed(Pending inner, const CollectiveCall& call, Clock::time_point start, std::shared_ptr<TrafficMeter> meter)
      : inner_(std::move(inner)),
        operation_(call.collective),
        codes_(call.in.dtype == Dtype::u8 && call.collective != Collective::broadcast),
        start_(start),
        meter_(std::move(meter)) {}

  void wait() override {
    inner_.wait();
    count();
  }
  void wait_in(const Stream& stream) override {
    inner_.wait(stream);
    count();
  }
  bool done() override { return inner_.done(); }
  Moved moved() const override { return inner_.moved(); }

 private:
  void count() {
    if (auto meter = std::exchange(meter_, nullptr))
      meter->count(operation_, inner_.moved(), std::chrono::duration<double>(Clock::now() - start_).count(), codes_);
  }

  Pending inner_;
  Collective operation_;
  bool codes_;  // of steps, what else are bytes is broadcast
  Clock::time_point start_;
  std::shared_ptr<TrafficMeter> meter_;
};

class Metered final : public Decorated {
 public:
  Metered(std::shared_ptr<CommunicatorImpl> inner, std::shared_ptr<TrafficMeter> meter)
      : Decorated(std::move(inner)), meter_(std::move(meter)) {}

  Pending run(const CollectiveCall& call) override {
    const auto start = Clock::now();
    auto timed = std::make_shared<Timed>(inner().run(call), call, start, meter_);
    if (timed->done()) timed->wait();
    return Pending(std::move(timed));
  }
  std::shared_ptr<CommunicatorImpl> split(int color, int key) override {
    return metered(inner().split(color, key), meter_);
  }

 private:
  std::shared_ptr<TrafficMeter> meter_;
};

class Checked final : public Decorated {
 public:
  // `host` joins the same ranks in the host's memory.
  Checked(std::shared_ptr<CommunicatorImpl> inner, std::shared_ptr<CommunicatorImpl> host)
      : Decorated(std::move(inner)), host_(std::move(host)) {}

  Pending run(const CollectiveCall& call) override {
    compare(Fingerprint::of(++sequence_, call));
    return inner().run(call);
  }
  std::shared_ptr<CommunicatorImpl> split(int color, int key) override {
    compare(Fingerprint::split(++sequence_));
    auto group = inner().split(color, key);
    if (host_.get() == &inner()) return checked(std::move(group));
    return std::make_shared<Checked>(std::move(group), host_->split(color, key));
  }
  std::shared_ptr<CommunicatorImpl> on_device(int device) override {
    auto group = inner().on_device(device);
    return group == nullptr ? nullptr : std::make_shared<Checked>(std::move(group), host_);
  }

 private:
  void compare(const Fingerprint& own) {
    std::vector<Fingerprint> calls;
    try {
      calls = gather_each(*host_, own);
    } catch (const CommError& error) {
      throw CommError("rank " + std::to_string(rank()) + ": " + own.text() + ": comparing the calls: " + error.what());
    }
    require_same(calls, rank());
  }

  std::shared_ptr<CommunicatorImpl> host_;
  std::uint64_t sequence_ = 0;
};

class Staged final : public Decorated {
 public:
  Staged(std::shared_ptr<CommunicatorImpl> inner, Device& device) : Decorated(std::move(inner)), device_(device) {}

  // On host memory of the same sizes; what is to be both is one array.
  Pending run(const CollectiveCall& call) override {
    if (call.collective == Collective::barrier) return inner().run(call);
    const auto& [collective, in, out, root, leaves] = call;
    const bool same = in.data == out.data && in.bytes() == out.bytes();
    const View there = room(0, out), sent = same ? there : room(1, {nullptr, in.count, in.dtype});
    device_.to_host(sent.data, in.data, in.bytes());
    Pending done = inner().run({collective, sent, there, root, leaves});
    done.wait();
    device_.from_host(out.data, there.data, out.bytes());
    return Pending(done.moved());
  }
  std::shared_ptr<CommunicatorImpl> split(int color, int key) override {
    return staged(inner().split(color, key), device_);
  }

 private:
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

// A hash of the host, and a device of it.
using Seat = std::array<std::uint64_t, 2>;

class ReachingDevices final : public Decorated {
 public:
  ReachingDevices(std::shared_ptr<CommunicatorImpl> inner, DeviceReach reach, std::string name)
      : Decorated(std::move(inner)), reach_(std::move(reach)), name_(std::move(name)) {}

  std::shared_ptr<CommunicatorImpl> split(int color, int key) override {
    std::string name = next_name() + ":" + std::to_string(color);
    return std::make_shared<ReachingDevices>(inner().split(color, key), reach_, std::move(name));
  }

  std::shared_ptr<CommunicatorImpl> on_device(int device) override {
    const std::string name = next_name();
    const Seat mine{std::hash<std::string>()(host_identity()), reach_.identity(device)};
    const std::vector<Seat> seats = gather_each(inner(), mine);
    if (std::set<Seat>(seats.begin(), seats.end()).size() < seats.size()) return nullptr;
    std::vector<std::string> hosts;
    for (const Seat& seat : seats) hosts.push_back(std::to_string(seat[0]));
    return reach_.join(name, rank(), size(), device, HostMap(hosts));
  }

 private:
  // All ranks of the group make the same calls, so that it is theirs alone.
  std::string next_name() { return name_ + "/" + std::to_string(++calls_); }

  DeviceReach reach_;
  std::string name_;
  int calls_ = 0;
};

}  // namespace

Traffic TrafficMeter::snapshot() const {
  const std::lock_guard lock(mutex_);
  return traffic_;
}

void TrafficMeter::reset() {
  const std::lock_guard lock(mutex_);
  traffic_ = {};
}

void TrafficMeter::count(Collective operation, const Moved& moved, double seconds, bool codes) {
  const std::lock_guard lock(mutex_);
  traffic_[operation].add(moved, 1, codes);
  traffic_[operation].seconds += seconds;
}

std::shared_ptr<CommunicatorImpl> metered(std::shared_ptr<CommunicatorImpl> inner,
                                          std::shared_ptr<TrafficMeter> meter) {
  return std::make_shared<Metered>(std::move(inner), std::move(meter));
}

std::shared_ptr<CommunicatorImpl> checked(std::shared_ptr<CommunicatorImpl> inner) {
  auto host = inner;
  return std::make_shared<Checked>(std::move(inner), std::move(host));
}

std::shared_ptr<CommunicatorImpl> staged(std::shared_ptr<CommunicatorImpl> inner, Device& device) {
  return std::make_shared<Staged>(std::move(inner), device);
}

Communicator on_device(const Communicator& group, Device& device) {
  auto joined = group.size() == 1 ? nullptr : group.impl()->on_device(device.index());
  return Communicator(joined == nullptr ? staged(group.impl(), device) : std::move(joined));
}

std::shared_ptr<CommunicatorImpl> reaching_devices(std::shared_ptr<CommunicatorImpl> inner, DeviceReach reach) {
  return std::make_shared<ReachingDevices>(std::move(inner), std::move(reach), "devices");
}

}  // namespace zero
