// Whether the kernel has ended processes because memory ran out.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <utility>

namespace cli {

// The kernel's count: that of this process's control group, or where that has none, of the whole system. `root` is
// where /proc and /sys lie. Nothing when the kernel does not tell.
std::optional<std::int64_t> memory_kills(const std::filesystem::path& root = "/");

// Compares the count with what it was when this was built.
class MemoryWatch {
 public:
  explicit MemoryWatch(std::filesystem::path root = "/") : root_(std::move(root)), before_(memory_kills(root_)) {}

  bool ran_out() const {
    const auto now = memory_kills(root_);
    return now && before_ && *now > *before_;
  }

 private:
  std::filesystem::path root_;
  std::optional<std::int64_t> before_;
};

}  // namespace cli
