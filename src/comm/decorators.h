// Communicators that stand before another one and add one thing to each of its calls. No torch.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "comm/hosts.h"
#include "comm/metered.h"
#include "zero/communicator.h"

namespace zero {

class Device;

// Passes everything on as it is, but for what makes another communicator.
class Decorated : public CommunicatorImpl {
 public:
  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  std::string_view backend() const override { return inner_->backend(); }
  std::chrono::milliseconds time_limit() const override { return inner_->time_limit(); }
  Topology topology() const override { return inner_->topology(); }
  Pending run(const CollectiveCall& call) override { return inner_->run(call); }
  void go_first() override { inner_->go_first(); }
  void give_up(const std::string& why) override { inner_->give_up(why); }
  std::shared_ptr<void> own_memory(std::int64_t bytes) override { return inner_->own_memory(bytes); }
  std::shared_ptr<void> common_memory(std::int64_t bytes) override { return inner_->common_memory(bytes); }

 protected:
  explicit Decorated(std::shared_ptr<CommunicatorImpl> inner) : inner_(std::move(inner)) {}
  CommunicatorImpl& inner() const { return *inner_; }

 private:
  std::shared_ptr<CommunicatorImpl> inner_;
};

// `inner`, metered; groups split from it share the meter. A call is booked when its completion is first waited for.
std::shared_ptr<CommunicatorImpl> metered(std::shared_ptr<CommunicatorImpl> inner, std::shared_ptr<TrafficMeter> meter);

// `inner`, checked: every rank whose peers call another operation, or the same one with other shapes,
// dtypes or root, throws a CommError listing what each rank called. A call blocks until all ranks have
// made theirs; a rank that makes none is found by inner's timeout. Groups split from it are checked.
std::shared_ptr<CommunicatorImpl> checked(std::shared_ptr<CommunicatorImpl> inner);

// `inner`, whose group works on the host's memory, for views of `device`, which stays: what is sent is brought to the
// host first, what comes is taken to the device. Groups split from it are staged, too. Operations on a device's memory
// are complete when the call returns, but for the last copy, which is queued on the calling thread's current stream.
std::shared_ptr<CommunicatorImpl> staged(std::shared_ptr<CommunicatorImpl> inner, Device& device);

// The group's ranks for memory of their devices: joined so where they can be, else through the host's. Collective.
Communicator on_device(const Communicator& group, Device& device);

// How ranks are joined for the memory of their devices.
struct DeviceReach {
  // The same for two ranks of a host that use one device as theirs, which cannot be joined then.
  std::function<std::uint64_t(int device)> identity;
  // Joins the ranks that have been given this name, which are nobody else's. Collective.
  std::function<std::shared_ptr<CommunicatorImpl>(const std::string& name, int rank, int size, int device,
                                                  const HostMap& hosts)>
      join;
};

// `inner`, whose on_device() joins the ranks by `reach`; groups split from it have it, too.
std::shared_ptr<CommunicatorImpl> reaching_devices(std::shared_ptr<CommunicatorImpl> inner, DeviceReach reach);

}  // namespace zero
