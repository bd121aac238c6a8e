#include "device/memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <system_error>

namespace zero::test::accelerator {
namespace {

constexpr std::size_t kReserved = std::size_t{1} << 42;
constexpr std::size_t kPage = 4096;
constexpr std::size_t kKeptPoison = std::size_t{16} << 20;

[[noreturn]] void fail(const char* what) {
  throw std::system_error(errno, std::generic_category(), what);
}

// No core dump walks through it.
char* map(int file, int protection) {
  void* at = mmap(nullptr, kReserved, protection, MAP_SHARED | MAP_NORESERVE, file, 0);
  if (at == MAP_FAILED) fail("mmap");
  madvise(at, kReserved, MADV_DONTDUMP);
  return static_cast<char*>(at);
}

}  // namespace

Memory::Memory() : capacity(std::numeric_limits<std::int64_t>::max()), file_(memfd_create("accelerator", MFD_CLOEXEC)) {
  if (file_ < 0) fail("memfd_create");
  if (ftruncate(file_, kReserved) != 0) fail("ftruncate");
  addresses_ = map(file_, PROT_NONE);
  shadows_ = map(file_, PROT_READ | PROT_WRITE);
}

// A page of its own, so that it can be given back alone; and one beyond it.
std::shared_ptr<Block> Memory::take(std::size_t bytes, Key stream) {
  const std::size_t pages = (bytes + kPage - 1) / kPage + 1;
  if (pages * kPage > kReserved - next_) throw std::runtime_error("the simulated device has no addresses left");
  const auto block = std::make_shared<Block>();
  block->begin = addresses_ + next_;
  block->bytes = bytes;
  block->stream = stream;
  block->cached = cached.take(bytes, stream);
  next_ += pages * kPage;
  blocks_[block->begin] = block;
  const auto size = static_cast<std::int64_t>(rounded(bytes));
  allocated += size;
  reserved += size;
  peak = std::max(peak, allocated);
  ++allocations;
  ++live;
  return block;
}

std::shared_ptr<Block> Memory::find(const void* address) const {
  const auto next = blocks_.upper_bound(static_cast<const char*>(address));
  if (next == blocks_.begin()) return nullptr;
  const std::shared_ptr<Block>& block = std::prev(next)->second;
  return address < block->begin + block->bytes ? block : nullptr;
}

bool Memory::owns(const void* address) const {
  return address >= addresses_ && address < addresses_ + kReserved;
}

bool Memory::handed_out(const void* address) const {
  return address >= addresses_ && address < addresses_ + next_;
}

void Memory::poison(const Block& block) const {
  std::memset(shadow(block.begin), 0xFF, block.bytes);
}

void Memory::count_free(const Block& block) {
  --live;
  if (block.recorded.empty()) give_up(block);
}

void Memory::give_up(const Block& block) {
  allocated -= static_cast<std::int64_t>(rounded(block.bytes));
  cached.give(block.cached);
}

void Memory::release(const Block& block) {
  poison(block);
  const auto size = static_cast<std::int64_t>(rounded(block.bytes));
  if (!block.recorded.empty()) give_up(block);
  reserved -= size;
  released_.emplace_back(block.begin - addresses_, block.bytes);
  released_bytes_ += block.bytes;
  blocks_.erase(block.begin);
  give_back(kKeptPoison);
}

// A little stays, so that who reads it too late reads poison, not zeros.
void Memory::give_back(std::size_t keep) {
  for (; released_bytes_ > keep; released_.pop_front()) {
    const auto [offset, bytes] = released_.front();
    const std::size_t whole = (bytes + kPage - 1) / kPage * kPage;
    if (fallocate(file_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset),
                  static_cast<off_t>(whole)) != 0)
      fail("fallocate");
    released_bytes_ -= bytes;
  }
}

}  // namespace zero::test::accelerator
