// A file of which this process sees the bytes as memory, to read only. No torch.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "base/descriptor.h"

namespace zero {

// Immutable, and safe to read from several threads. A page counts as this process's when it is touched.
class MappedFile {
 public:
  // Waits for no pipe and reads no device. Throws CheckpointError.
  explicit MappedFile(const std::string& path);

  const std::string& path() const { return path_; }
  std::int64_t size() const { return size_; }
  // Touching what is gone of a file that has become shorter is a SIGBUS, as of any mapping. A file that is replaced by
  // a rename, or removed, stays what it was.
  std::span<const char> bytes() const { return {mapping_.get(), static_cast<std::size_t>(size_)}; }
  // Copies from byte `at` on, past the mapping. Throws CheckpointError where the file ends before.
  void read(std::int64_t at, std::span<char> to) const;

 private:
  std::string path_;
  Descriptor file_;
  std::int64_t size_ = 0;
  std::shared_ptr<const char> mapping_;  // null for a file without bytes
};

}  // namespace zero
