// The door to disks: files without a name, space in them, and what transfers come to; tests break each. No torch.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "base/system_files.h"
#include "partition/staging.h"

namespace zero {

// Which bytes of files that grow are whose.
class DiskSpace {
 public:
  // `bytes` that nobody has, from a multiple of `alignment` on: the first that fit, else at the end, which `grow` is
  // told of before. What it throws leaves all as it was.
  std::int64_t take(std::int64_t bytes, std::int64_t alignment, const std::function<void(std::int64_t end)>& grow);
  void give(std::int64_t at, std::int64_t bytes);

 private:
  std::map<std::int64_t, std::int64_t> free_;  // where ranges begin and end, none beside another
  std::int64_t end_ = 0;
};

struct DiskTransfer;

// Offsets and lengths of what is read and written past the page cache are multiples of kDiskPage.
//
// The system's. Results are those of the calls, but -errno for -1. Thread-safe.
class DiskSystem {
 public:
  virtual ~DiskSystem() = default;

  virtual int open(const std::string& path, int flags);
  virtual int unlink(const std::string& path);
  virtual int allocate(int file, std::int64_t at, std::int64_t bytes);
  virtual int resize(int file, std::int64_t bytes);
  virtual std::int64_t free_bytes(const std::string& directory);
  // What a part of a transfer came to, bytes or -errno. Called by queues when the kernel says so.
  virtual std::int64_t result(const DiskTransfer& /*transfer*/, std::int64_t bytes) { return bytes; }
};

// Lives as long as the process.
DiskSystem& disk_system();

// A file that has no name, so that nothing is left of it however the process ends. Its size is what was reserved.
class DiskFile {
 public:
  // Past the page cache where `direct` and the file system can. Throws ConfigError for a directory that is none or
  // cannot be written, StoreError for all else.
  DiskFile(DiskSystem& system, std::string directory, bool direct);

  int descriptor() const { return file_.get(); }
  const std::string& directory() const { return directory_; }
  bool direct() const { return direct_; }
  // Of the memory that is read into and written from.
  std::int64_t alignment() const { return alignment_; }
  std::int64_t size() const { return size_; }

  // "4096 bytes at offset 8192 of the file without a name in '/mnt/a'"
  std::string bytes_at(std::int64_t at, std::int64_t count) const;

  // So that `bytes` are there, and no write will find the file system full. Throws StoreError; then nothing changed.
  void reserve(std::int64_t bytes);
  void give_back(std::int64_t bytes);  // what is beyond so many

 private:
  int open(int flags);

  DiskSystem& system_;
  std::string directory_;
  Descriptor file_;
  bool direct_ = false;
  std::int64_t alignment_ = 1;
  std::int64_t size_ = 0;
};

}  // namespace zero
