// How large operations on disks should be. No torch.
#pragma once

#include <cstdint>
#include <vector>

#include "memory/disk_files.h"
#include "zero/disk.h"

namespace zero {

// Of each directory: bytes of operations that are under way at once, where nothing is said of their number.
inline constexpr std::int64_t kDiskUnderWay = std::int64_t{8} << 20;
// The largest that is tried, and taken where there is no room to try.
inline constexpr std::int64_t kDiskBlock = std::int64_t{1} << 20;

// The size with which reading and writing these files takes the least time; the largest of those that take as much.
// `depth`: under way for each file, or 0. Leaves the files as they were.
std::int64_t measured_block(DiskSystem& system, std::vector<DiskFile>& files, DiskQueueKind kind, int depth);

}  // namespace zero
