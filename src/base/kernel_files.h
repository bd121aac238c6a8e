// What the kernel tells in files of words and numbers, and where the control groups of this process have theirs.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace zero {

// The number behind the word `field`; none where the file or the word is not there.
std::optional<std::int64_t> field_of(const std::filesystem::path& file, std::string_view field);

// A control group that accounts for memory.
struct MemoryGroup {
  int version = 2;
  std::filesystem::path folder;  // of its files, which need not be there
  std::string name;              // "/a/b"
};
// This process's own first, then those above it. In a container, which hides the groups above, the last one stands for
// its own. `root` is what /proc and /sys are looked for under.
std::vector<MemoryGroup> memory_groups(const std::filesystem::path& root = "/");

}  // namespace zero
