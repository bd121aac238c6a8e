#include "memory/disk_checks.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>

#include "memory/disk_files.h"

namespace zero {

std::uint64_t disk_check(const char* page) {
  return std::max<std::uint64_t>(XXH3_64bits(page, kDiskPage), 1);
}

std::uint64_t* disk_checks(const DiskExtent& extent, std::int64_t at) {
  return static_cast<std::uint64_t*>(extent.checks.view().data) + (at - extent.at) / kDiskPage;
}

}  // namespace zero
