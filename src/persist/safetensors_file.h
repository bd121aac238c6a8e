// A safetensors file, opened for reading. No torch.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/system_files.h"
#include "persist/safetensors.h"

namespace zero {

// A file of which this process sees the bytes as memory, to read only. Immutable, and safe to read from several
// threads. A page counts as this process's when it is touched.
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

// Immutable, and safe to read from several threads. Opening it reads the header and touches no tensor. What happens to
// a file that becomes shorter while it is open, MappedFile says.
class SafetensorsFile {
 public:
  // Throws CheckpointError for what cannot be read and for everything that read_safetensors_header() refuses.
  explicit SafetensorsFile(const std::string& path);

  const std::string& path() const { return file_.path(); }
  const std::vector<TensorEntry>& entries() const { return header_.tensors; }
  // Null where there is none.
  const TensorEntry* find(std::string_view name) const;

  // Copies bytes of a tensor from its byte `begin` on, without mapping them into this process's memory. Throws
  // StateError for what the tensor has not, and CheckpointError where they are no longer in the file.
  void read(const TensorEntry& tensor, std::int64_t begin, std::span<char> to) const;

 private:
  MappedFile file_;
  SafetensorsHeader header_;
  std::vector<std::size_t> by_name_;  // of tensors
};

}  // namespace zero
