// Ranks of one host over shared memory: what lies in memory that the communicator gave out is read in
// place, everything else goes through a constant amount of staging.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/waits.h"
#include "zero/communicator.h"

namespace zero {

struct SharedMemoryOptions {
  std::chrono::milliseconds timeout{};
  // Called now and then while the ranks have not met; may throw to end the wait.
  std::function<void()> still_wanted = [] {};
  // How rank 0 makes a name known that the others look up: none when it has failed. Both may block, and throw.
  std::function<void(const std::string& name)> publish = {};
  std::function<std::string()> look_up = {};
  // What errors call the ranks: their numbers in the world. None: those in the group.
  std::vector<int> numbers = {};
  std::shared_ptr<Waits> waits = std::make_shared<Waits>();
};

// Joins `size` ranks. Throws CommError when they do not meet in time.
std::shared_ptr<CommunicatorImpl> shared_memory_communicator(int rank, int size, SharedMemoryOptions options);

}  // namespace zero
