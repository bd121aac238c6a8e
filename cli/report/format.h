// Numbers for people.
#pragma once

#include <cstdint>
#include <string>

#include "base/text.h"

namespace cli {

using zero::fixed;
using zero::shortest;
using zero::significant;

std::string with_separators(std::int64_t value);                   // 1,234,567
std::string counted(std::int64_t count, const std::string& what);  // 1 file, 2,000 files
std::string human_bytes(std::int64_t bytes);                       // 1.2 MiB

}  // namespace cli
