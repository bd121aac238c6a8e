// How large operations on disks should be. No torch.
#pragma once

#include <cstdint>
#include <vector>

#include "memory/disk_files.h"
#include "zero/disk.h"

namespace zero {

// The size, of at most kDiskBlock, with which reading and writing these files takes the least time; the largest of
// those that take as much. `depth`: under way for each file, or 0. Leaves the files as they were.
std::int64_t measured_block(DiskSystem& system, std::vector<DiskFile>& files, DiskQueueKind kind, int depth);

}  // namespace zero
