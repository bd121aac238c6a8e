// Ranks of one host over shared memory: what lies in memory that the communicator gave out is read in
// place, everything else goes through a constant amount of staging.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "zero/communicator.h"

namespace zero {

struct SharedMemoryOptions {
  std::chrono::milliseconds timeout{};
  // Called now and then while the ranks have not met; may throw to end the wait.
  std::function<void()> still_wanted = [] {};
  // How rank 0 makes a name known that the others look up: none when it has failed. Both may block, and throw.
  std::function<void(const std::string& name)> publish = {};
  std::function<std::string()> look_up = {};
  // In messages the ranks are called by their numbers from here: by those of the world.
  int first_rank = 0;
};

// Joins `size` ranks. Throws CommError when they do not meet in time.
std::shared_ptr<CommunicatorImpl> shared_memory_communicator(int rank, int size, const SharedMemoryOptions& options);

}  // namespace zero
