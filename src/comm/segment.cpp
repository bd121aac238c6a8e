#include "comm/segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <limits>
#include <string>

#include "base/elements.h"
#include "zero/error.h"

namespace zero {
namespace {

constexpr std::int64_t kPage = 4096;
constexpr std::int64_t kLeastRoom = std::int64_t{1} << 30;
constexpr std::int64_t kMostRoom = std::int64_t{1} << 44;
constexpr std::int64_t kPiece = std::int64_t{16} << 20;

std::int64_t before_rooms(const Segment::Shape& shape) {
  return round_up(shape.control, kPage) + shape.ranks * round_up(shape.staging, kPage);
}

// How long a file may be made (ulimit -f): who makes one longer gets a signal that ends the process.
std::int64_t longest_file() {
  rlimit limit{};
  if (getrlimit(RLIMIT_FSIZE, &limit) != 0) fail_sharing("the limit of a file's size is unknown");
  return static_cast<std::int64_t>(std::min<rlim_t>(limit.rlim_cur, std::numeric_limits<std::int64_t>::max()));
}

// The host's memory, of the address space no more than an eighth in all, and what the limit of a file's size leaves.
std::int64_t room_for(const Segment::Shape& shape) {
  const std::int64_t memory = round_up(sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGE_SIZE), kPage);
  const std::int64_t most = std::min(kMostRoom, longest_file() - before_rooms(shape));
  return std::min(std::max(memory, kLeastRoom), most / (1 + shape.ranks) / kPage * kPage);
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
  const std::int64_t length = round_up(std::max<std::int64_t>(bytes, 1), kPage);
  const auto found = std::find_if(free_.begin(), free_.end(), [&](const auto& part) { return part.second >= length; });
  if (found == free_.end()) return -1;
  const auto [offset, room] = *found;
  free_.erase(found);
  if (room > length) free_[offset + length] = room - length;
  return offset;
}

void Heap::give(std::int64_t offset, std::int64_t bytes) {
  std::int64_t length = round_up(std::max<std::int64_t>(bytes, 1), kPage);
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

Descriptor Segment::create(const Shape& shape) {
  Descriptor file(memfd_create("zero", MFD_CLOEXEC));
  if (!file) fail_sharing("no anonymous file");
  const std::int64_t room = room_for(shape);
  if (room <= 0) {
    errno = EFBIG;
    fail_sharing("the limit of a file's size (ulimit -f) has no room for " + std::to_string(shape.ranks) + " ranks");
  }
  const std::int64_t size = before_rooms(shape) + (1 + shape.ranks) * room;
  if (ftruncate(file.get(), size) != 0) fail_sharing("a file of " + std::to_string(size >> 30) + " GiB, sparse");
  return file;
}

// The file is opened anew because locks belong to an opening of it, and a descriptor that came from a peer
// is the peer's.
Segment::Segment(const Descriptor& file, int rank, const Shape& shape)
    : file_(open(("/proc/self/fd/" + std::to_string(file.get())).c_str(), O_RDWR | O_CLOEXEC)),
      rank_(rank),
      shape_{shape.ranks, round_up(shape.control, kPage), round_up(shape.staging, kPage)} {
  struct stat info {};
  if (!file_ || fstat(file_.get(), &info) != 0) fail_sharing("the anonymous file cannot be opened");
  size_ = info.st_size;
  const std::int64_t common = before_rooms(shape);
  const std::int64_t room = (size_ - common) / (1 + shape_.ranks);
  common_ = Heap(common, common + room);
  own_ = Heap(common + (1 + rank_) * room, common + (2 + rank_) * room);
  reserve(0, common);
  map();
}

// Not part of a core dump, which would fill in what is sparse.
void Segment::map() {
  void* const base = mmap(nullptr, static_cast<std::size_t>(size_), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE,
                          file_.get(), 0);
  if (base == MAP_FAILED) fail_sharing("mapping " + std::to_string(size_ >> 30) + " GiB of address space");
  madvise(base, static_cast<std::size_t>(size_), MADV_DONTDUMP);
  base_ = static_cast<char*>(base);
}

Segment::~Segment() {
  munmap(base_, static_cast<std::size_t>(size_));
}

std::int64_t Segment::offset_of(const void* data) const {
  const auto offset = static_cast<const char*>(data) - base_;
  return offset >= 0 && offset < size_ ? offset : -1;
}

// Without this a page for which the host has no room would end the process with SIGBUS. In pieces, since
// a signal may end a call with nothing done.
void Segment::reserve(std::int64_t offset, std::int64_t bytes) const {
  const std::int64_t end = offset + round_up(std::max<std::int64_t>(bytes, 1), kPage);
  while (offset < end) {
    const std::int64_t piece = std::min(kPiece, end - offset);
    if (fallocate(file_.get(), 0, offset, piece) == 0) {
      offset += piece;
    } else if (errno != EINTR) {
      throw ConfigError("rank " + std::to_string(rank_) + ": the host has no room for " + std::to_string(bytes) +
                            " bytes of shared memory: " + std::strerror(errno),
                        "free memory, train a smaller model, or shard it over more ranks");
    }
  }
}

std::int64_t Segment::take(Heap& heap, std::int64_t bytes) {
  const std::lock_guard lock(mutex_);
  const std::int64_t offset = heap.take(bytes);
  if (offset >= 0) return offset;
  throw ConfigError("rank " + std::to_string(rank_) + ": " + std::to_string(bytes) +
                        " bytes of shared memory are more than the host has, or than its limit of a file's size allows",
                    "train a smaller model, shard it over more ranks, or raise ulimit -f where it is lower than that");
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
  if (fcntl(file_.get(), F_OFD_SETLK, &lock) != 0) fail_sharing("the mark of a living rank");
}

bool Segment::alive(int rank) const {
  struct flock lock = lock_of(rank);
  return fcntl(file_.get(), F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}

}  // namespace zero
