#include "comm/on_devices.h"

#include <array>
#include <set>
#include <utility>
#include <vector>

#include "comm/decorated.h"

namespace zero {
namespace {

// A hash of the host, and a device of it.
using Seat = std::array<std::uint64_t, 2>;

class ReachingDevices final : public Decorated {
 public:
  ReachingDevices(std::shared_ptr<CommunicatorImpl> inner, DeviceReach reach, std::string name)
      : Decorated(std::move(inner)), reach_(std::move(reach)), name_(std::move(name)) {}

  Pending all_gather(ConstView shard, View whole) override { return inner().all_gather(shard, whole); }
  Pending reduce_scatter(ConstView whole, View shard) override { return inner().reduce_scatter(whole, shard); }
  Pending all_reduce(View values) override { return inner().all_reduce(values); }
  Pending all_to_all(ConstView input, View output) override { return inner().all_to_all(input, output); }
  Pending broadcast(View values, int root) override { return inner().broadcast(values, root); }
  Pending barrier() override { return inner().barrier(); }

  std::shared_ptr<CommunicatorImpl> split(int color, int key) override {
    std::string name = next_name() + ":" + std::to_string(color);
    return std::make_shared<ReachingDevices>(inner().split(color, key), reach_, std::move(name));
  }

  std::shared_ptr<CommunicatorImpl> on_device(int device) override {
    const std::string name = next_name();
    const Seat mine{std::hash<std::string>()(host_identity()), reach_.identity(device)};
    std::vector<Seat> seats(static_cast<std::size_t>(size()));
    constexpr std::int64_t kBytes = sizeof(Seat);
    inner().all_gather({&mine, kBytes, Dtype::u8}, {seats.data(), kBytes * size(), Dtype::u8}).wait();
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

std::shared_ptr<CommunicatorImpl> reaching_devices(std::shared_ptr<CommunicatorImpl> inner, DeviceReach reach) {
  return std::make_shared<ReachingDevices>(std::move(inner), std::move(reach), "devices");
}

}  // namespace zero
