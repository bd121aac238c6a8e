// Where and how a store on disks keeps its bytes. No torch.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

namespace zero {

// How operations are given to the kernel.
enum class DiskQueueKind : std::uint8_t {
  automatic,  // io_uring, where the library has it and the kernel permits it, else threads
  io_uring,   // ConfigError where it cannot be had
  threads,    // that call pread and pwrite
};

struct DiskOptions {
  // A file in each, which has no name and is gone with the process; stripes of `block` bytes go round robin over them.
  std::vector<std::filesystem::path> directories = {};
  // Keeps XXH3 of every 4 KiB in memory, 0.2 % of what is stored: bytes that are not what was written are an error.
  bool checks = false;
  // Bytes of an operation on a disk, a multiple of 4 KiB; 0: measured when the store is built, in a third of a second.
  std::int64_t block = 0;
  // Operations under way, for each directory; 0: those of 8 MiB.
  int depth = 0;
  // Past the page cache, where the file system can do that.
  bool direct = true;
  DiskQueueKind queue = DiskQueueKind::automatic;
};

}  // namespace zero
