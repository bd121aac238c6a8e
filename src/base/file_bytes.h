// Bytes of a file, copied or mapped.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <memory>

namespace zero {

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

}  // namespace zero
