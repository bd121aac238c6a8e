#include "memory.h"

#include <malloc.h>

#include <algorithm>
#include <fstream>
#include <string>

namespace cli {
namespace {

std::int64_t status(const std::string& field) {
  std::ifstream in("/proc/self/status");
  for (std::string word; in >> word;) {
    std::int64_t kib = 0;
    if (word == field && in >> kib) return kib * 1024;
  }
  return 0;
}

}  // namespace

PeakMemory::PeakMemory() {
  ::malloc_trim(0);
  std::ofstream("/proc/self/clear_refs") << "5";  // the peak starts over
  before_ = status("VmRSS:");
}

std::int64_t PeakMemory::bytes() const {
  return std::max<std::int64_t>(status("VmHWM:") - before_, 0);
}

}  // namespace cli
