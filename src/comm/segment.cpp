#include "comm/segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <string>

#include "zero/error.h"

namespace zero {
namespace {

constexpr std::int64_t kPage = 4096;
constexpr std::int64_t kLeastRoom = std::int64_t{1} << 30;
constexpr std::int64_t kMostRoom = std::int64_t{1} << 42;

std::int64_t pages(std::int64_t bytes) {
  return (bytes + kPage - 1) / kPage * kPage;
}

std::int64_t physical_memory() {
  return std::clamp(pages(sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGE_SIZE)), kLeastRoom, kMostRoom);
}

[[noreturn]] void fail(const std::string& what) {
  throw CommError("sharing memory with the ranks of this host: " + what + ": " + std::strerror(errno),
                  "ZERO_TRANSPORT=gloo does without shared memory");
}

// A lock of the byte `rank`, held by an open file and thus given up by the kernel when its process ends.
struct flock lock_of(int rank) {
  struct flock lock {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  lock.l_start = rank;
  lock.l_len = 1;
  return lock;
}

}  // namespace

std::int64_t Heap::take(std::int64_t bytes) {
  const std::int64_t length = pages(std::max<std::int64_t>(bytes, 1));
  const auto found = std::find_if(free_.begin(), free_.end(), [&](const auto& part) { return part.second >= length; });
  if (found == free_.end()) return -1;
  const auto [offset, room] = *found;
  free_.erase(found);
  if (room > length) free_[offset + length] = room - length;
  return offset;
}

void Heap::give(std::int64_t offset, std::int64_t bytes) {
  std::int64_t length = pages(std::max<std::int64_t>(bytes, 1));
  auto next = free_.lower_bound(offset);
  if (next != free_.end() && next->first == offset + length) {
    length += next->second;
    next = free_.erase(next);
  }
  if (next != free_.begin() && std::prev(next)->first + std::prev(next)->second == offset) {
    std::prev(next)->second += length;
  } else {
    free_[offset] = length;
  }
}

Descriptor Segment::create() {
  Descriptor file(memfd_create("zero", MFD_CLOEXEC));
  if (!file) fail("no anonymous file");
  return file;
}

// The file is opened anew because locks belong to an opening of it, and a descriptor that came from a peer
// is the peer's.
Segment::Segment(Descriptor file, int rank, const Shape& shape) : rank_(rank), shape_(shape), room_(physical_memory()) {
  shape_.control = pages(shape_.control);
  shape_.staging = pages(shape_.staging);
  const std::int64_t common = shape_.control + shape_.ranks * shape_.staging;
  size_ = common + (1 + shape_.ranks) * room_;
  file_ = Descriptor(open(("/proc/self/fd/" + std::to_string(file.get())).c_str(), O_RDWR | O_CLOEXEC));
  if (!file_) fail("the anonymous file cannot be opened");
  if (ftruncate(file_.get(), size_) != 0) fail("a file of " + std::to_string(size_ >> 30) + " GiB, sparse");
  void* const base = mmap(nullptr, static_cast<std::size_t>(size_), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE,
                          file_.get(), 0);
  if (base == MAP_FAILED) fail("mapping " + std::to_string(size_ >> 30) + " GiB of address space");
  base_ = static_cast<char*>(base);
  common_ = Heap(common, common + room_);
  own_ = Heap(common + (1 + rank_) * room_, common + (2 + rank_) * room_);
  reserve(0, common);
}

Segment::~Segment() {
  munmap(base_, static_cast<std::size_t>(size_));
}

std::int64_t Segment::offset_of(const void* data) const {
  const auto offset = static_cast<const char*>(data) - base_;
  return offset >= 0 && offset < size_ ? offset : -1;
}

// Without this a page for which the host has no room would end the process with SIGBUS.
void Segment::reserve(std::int64_t offset, std::int64_t bytes) const {
  int failed = 0;
  do failed = fallocate(file_.get(), 0, offset, pages(bytes));
  while (failed != 0 && errno == EINTR);
  if (failed == 0) return;
  throw ConfigError("rank " + std::to_string(rank_) + ": the host has no room for " + std::to_string(bytes) +
                        " bytes of shared memory: " + std::strerror(errno),
                    "free memory, train a smaller model, or shard it over more ranks");
}

std::int64_t Segment::take(Heap& heap, std::int64_t bytes) {
  const std::lock_guard lock(mutex_);
  const std::int64_t offset = heap.take(bytes);
  if (offset >= 0) return offset;
  throw ConfigError("rank " + std::to_string(rank_) + ": " + std::to_string(bytes) +
                        " bytes of shared memory are more than the host has",
                    "train a smaller model, or shard it over more ranks");
}

std::shared_ptr<void> Segment::own_memory(std::int64_t bytes) {
  const std::int64_t offset = take(own_, bytes);
  std::shared_ptr<void> memory(at(offset), [self = shared_from_this(), offset, bytes](void*) {
    const std::lock_guard lock(self->mutex_);
    self->own_.give(offset, bytes);
  });
  reserve(offset, bytes);
  return memory;
}

// Never given back: ranks may let go of it in different orders.
std::shared_ptr<void> Segment::common_memory(std::int64_t bytes) {
  const std::int64_t offset = take(common_, bytes);
  reserve(offset, bytes);
  return {shared_from_this(), at(offset)};
}

void Segment::join() const {
  struct flock lock = lock_of(rank_);
  if (fcntl(file_.get(), F_OFD_SETLK, &lock) != 0) fail("the mark of a living rank");
}

bool Segment::alive(int rank) const {
  struct flock lock = lock_of(rank);
  return fcntl(file_.get(), F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}

}  // namespace zero
