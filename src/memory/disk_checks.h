// XXH3 of the pages of what a block has on disks. No torch.
#pragma once

#include <cstdint>

#include "memory/disk_operation.h"

namespace zero {

// Of kDiskPage bytes; never 0.
std::uint64_t disk_check(const char* page);

// Those of an extent that keeps them, from the page on that begins at this place in the line.
std::uint64_t* disk_checks(const DiskExtent& extent, std::int64_t at);

}  // namespace zero
