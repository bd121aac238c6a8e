#include "memory.h"

#include <malloc.h>

#include <algorithm>
#include <fstream>
#include <string>

namespace cli {
namespace {

std::int64_t field_of(const char* file, const std::string& field) {
  std::ifstream in(file);
  for (std::string word; in >> word;) {
    std::int64_t kib = 0;
    if (word == field && in >> kib) return kib * 1024;
  }
  return 0;
}

std::int64_t status(const std::string& field) {
  return field_of("/proc/self/status", field);
}

// What belongs to other processes of the memory shared with them, where n have it a part of 1 - 1/n.
std::int64_t shares_of_others() {
  return status("RssShmem:") - field_of("/proc/self/smaps_rollup", "Pss_Shmem:");
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
