#include "cli/training/memory.h"

#include <malloc.h>

#include <algorithm>
#include <fstream>

#include "base/system_files.h"

namespace cli {
namespace {

std::int64_t bytes_in(const char* file, const char* field) {
  return zero::field_of(file, field).value_or(0) * 1024;
}

std::int64_t status(const char* field) {
  return bytes_in("/proc/self/status", field);
}

// What belongs to other processes of the memory shared with them, where n have it a part of 1 - 1/n.
std::int64_t shares_of_others() {
  return status("RssShmem:") - bytes_in("/proc/self/smaps_rollup", "Pss_Shmem:");
}

}  // namespace

PeakMemory::PeakMemory() {
  ::malloc_trim(0);
  std::ofstream("/proc/self/clear_refs") << "5";  // the peak starts over
}

std::int64_t PeakMemory::bytes() const {
  return std::max<std::int64_t>(status("VmHWM:") - shares_of_others(), 0);
}

}  // namespace cli
