// Files, as the system has them: descriptors, what lies at a path, bytes copied or mapped, and what the kernel tells in
// files of words and numbers.
#pragma once

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace zero {

// A file descriptor that closes itself.
class Descriptor {
 public:
  explicit Descriptor(int fd = -1) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }

  int get() const { return fd_; }
  int release() { return std::exchange(fd_, -1); }
  explicit operator bool() const { return fd_ >= 0; }

 private:
  int fd_;
};

// Until it is not interrupted.
auto uninterrupted(const auto& call) {
  auto result = call();
  while (result == -1 && errno == EINTR) result = call();
  return result;
}

// What lies at a path where a file is wanted, in words; null where it is a regular file.
inline const char* other_than_file(mode_t mode) {
  switch (mode & S_IFMT) {
    case S_IFREG: return nullptr;
    case S_IFDIR: return "a folder";
    case S_IFIFO: return "a pipe";
    case S_IFSOCK: return "a socket";
    default: return "a device";
  }
}

// Copies `count` bytes from byte `at` on, or as many as there are; returns how many. -1: errno says why it could not.
inline std::int64_t read_at(int file, std::int64_t at, void* bytes, std::int64_t count) {
  constexpr std::int64_t most = std::int64_t{1} << 30;  // the system takes less than 2^31 at once
  std::int64_t done = 0;
  while (done < count) {
    const auto got = ::pread(file, static_cast<char*>(bytes) + done,
                             static_cast<std::size_t>(std::min(count - done, most)), at + done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return -1;
    if (got == 0) break;
    done += got;
  }
  return done;
}

// The file's `size` bytes, more than none, to be read. Null: errno says why they could not be mapped.
inline std::shared_ptr<const char> map_file(int file, std::int64_t size) {
  const auto bytes = static_cast<std::size_t>(size);
  void* const at = ::mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE, file, 0);
  if (at == MAP_FAILED) return nullptr;
  return {static_cast<const char*>(at), [bytes](const char* mapped) { ::munmap(const_cast<char*>(mapped), bytes); }};
}

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
