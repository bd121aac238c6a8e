// Threads of one process as ranks: operations read the peers' memory directly. Operations are
// complete when they return, and ranks that call different operations all get a CommError.
#pragma once

#include <chrono>
#include <memory>
#include <vector>

#include "comm/hosts.h"
#include "zero/communicator.h"

namespace zero {

// One communicator for each rank; give each thread its own. A rank whose communicator is destroyed
// has left: those who wait for it get a CommError. `hosts`: where they pretend to be.
std::vector<std::shared_ptr<CommunicatorImpl>> thread_communicators(int size, std::chrono::milliseconds timeout,
                                                                    const HostMap& hosts = {});

}  // namespace zero
