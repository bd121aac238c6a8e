// A group of ranks that can be joined for the memory of their devices, too. No torch.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "comm/hosts.h"
#include "zero/communicator.h"

namespace zero {

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
