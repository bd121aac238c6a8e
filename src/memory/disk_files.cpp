#include "memory/disk_files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <random>
#include <utility>

#include "base/elements.h"
#include "base/text.h"
#include "memory/block.h"

namespace zero {

std::int64_t DiskSpace::take(std::int64_t bytes, std::int64_t alignment,
                             const std::function<void(std::int64_t)>& grow) {
  for (const auto& [begin, end] : free_) {
    const std::int64_t at = round_up(begin, alignment), from = begin, to = end;
    if (at + bytes > to) continue;
    if (at + bytes < to) free_.emplace(at + bytes, to);
    if (at > from)
      free_[from] = at;
    else
      free_.erase(from);
    return at;
  }
  const bool extends = !free_.empty() && std::prev(free_.end())->second == end_;
  const std::int64_t from = extends ? std::prev(free_.end())->first : end_, at = round_up(from, alignment);
  grow(at + bytes);
  if (extends) free_.erase(from);
  if (at > from) free_[from] = at;
  end_ = at + bytes;
  return at;
}

void DiskSpace::give(std::int64_t at, std::int64_t bytes) {
  std::int64_t end = at + bytes;
  const auto next = free_.lower_bound(at);
  if (next != free_.end() && next->first == end) {
    end = next->second;
    free_.erase(next);
  }
  const auto after = free_.lower_bound(at);
  if (after != free_.begin() && std::prev(after)->second == at)
    std::prev(after)->second = end;
  else
    free_.emplace(at, end);
}

namespace {

template <class Call>
int uninterrupted(Call&& call) {
  for (;;) {
    const int result = call();
    if (result >= 0) return result;
    if (errno != EINTR) return -errno;
  }
}

[[noreturn]] void cannot_open(const std::string& directory, int error) {
  const std::string text = "cannot keep a file in " + in_quotes(directory) + ": " + std::strerror(error);
  switch (error) {
    case ENOENT:
    case ENOTDIR:
    case EACCES:
    case EPERM:
    case EROFS:
    case ELOOP:
    case ENAMETOOLONG: throw ConfigError(text, "give a folder that can be written");
    default: throw StoreError(text);
  }
}

// What the file system says of memory that goes past its cache; where it says nothing, what all are content with.
std::int64_t direct_alignment(int file) {
#ifdef STATX_DIOALIGN
  struct statx info {};
  if (::statx(file, "", AT_EMPTY_PATH, STATX_DIOALIGN, &info) == 0 && (info.stx_mask & STATX_DIOALIGN) != 0 &&
      info.stx_dio_mem_align > 0)
    return info.stx_dio_mem_align;
#else
  static_cast<void>(file);
#endif
  return kDiskPage;
}

}  // namespace

int DiskSystem::open(const std::string& path, int flags) {
  return uninterrupted([&] { return ::open(path.c_str(), flags | O_CLOEXEC, 0600); });
}

int DiskSystem::unlink(const std::string& path) {
  return uninterrupted([&] { return ::unlink(path.c_str()); });
}

int DiskSystem::allocate(int file, std::int64_t at, std::int64_t bytes) {
  return uninterrupted([&] { return ::fallocate(file, 0, at, bytes); });
}

int DiskSystem::resize(int file, std::int64_t bytes) {
  return uninterrupted([&] { return ::ftruncate(file, bytes); });
}

std::int64_t DiskSystem::free_bytes(const std::string& directory) {
  struct statvfs info {};
  const int result = uninterrupted([&] { return ::statvfs(directory.c_str(), &info); });
  if (result < 0) return result;
  const std::uint64_t block = std::max<std::uint64_t>(info.f_frsize, 1);
  return static_cast<std::int64_t>(std::min<std::uint64_t>(info.f_bavail, INT64_MAX / block) * block);
}

DiskSystem& disk_system() {
  static DiskSystem system;
  return system;
}

DiskFile::DiskFile(DiskSystem& system, std::string directory, bool direct)
    : system_(system), directory_(std::move(directory)) {
  int file = direct ? open(O_DIRECT) : -EINVAL;
  direct_ = file >= 0;
  if (file == -EINVAL) file = open(0);
  if (file < 0) cannot_open(directory_, -file);
  file_ = Descriptor(file);
  if (direct_) alignment_ = std::min(direct_alignment(file), kDiskPage);
}

// Where the file system has no files without a name, one that loses it at once.
int DiskFile::open(int flags) {
  int file = system_.open(directory_, O_TMPFILE | O_RDWR | flags);
  if (file != -EOPNOTSUPP && file != -EISDIR) return file;
  std::random_device random;
  do {
    const std::string path = directory_ + "/.zero-" + std::to_string(random()) + std::to_string(random());
    file = system_.open(path, O_CREAT | O_EXCL | O_RDWR | flags);
    // A file system may have made the file before it refuses its flags.
    const int removed = file == -EEXIST ? 0 : system_.unlink(path);
    if (file < 0 || removed >= 0) continue;
    ::close(file);
    file = removed;
  } while (file == -EEXIST);
  return file;
}

std::string DiskFile::bytes_at(std::int64_t at, std::int64_t count) const {
  return std::to_string(count) + " bytes at offset " + std::to_string(at) + " of the file without a name in " +
         in_quotes(directory_);
}

void DiskFile::reserve(std::int64_t bytes) {
  if (bytes <= size_) return;
  const int result = system_.allocate(descriptor(), size_, bytes - size_);
  if (result >= 0) {
    size_ = bytes;
    return;
  }
  system_.resize(descriptor(), size_);  // what was reserved of it before it failed
  const std::string wanted = std::to_string(bytes - size_) + " bytes in " + in_quotes(directory_);
  const std::string none = "no room for " + wanted + ": " + std::strerror(-result);
  if (result == -EFBIG) throw StoreError(none, "raise the limit of a file's size (ulimit -f), or give several folders");
  if (result == -ENOSPC || result == -EDQUOT)
    throw StoreError(
        none + ", " + std::to_string(std::max<std::int64_t>(system_.free_bytes(directory_), 0)) + " bytes are free",
        "free space there, or give another folder or several");
  if (result == -EOPNOTSUPP)
    throw StoreError("cannot reserve " + wanted + ": its file system has no fallocate",
                     "give a folder on one that has, such as ext4, xfs or btrfs");
  throw StoreError("cannot reserve " + wanted + ": " + std::strerror(-result));
}

void DiskFile::give_back(std::int64_t bytes) {
  if (bytes < size_ && system_.resize(descriptor(), bytes) >= 0) size_ = bytes;
}

}  // namespace zero
