#include "memory/arena.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <new>

#include "base/elements.h"

namespace zero {
std::size_t Arena::system_page() {
  return static_cast<std::size_t>(sysconf(_SC_PAGE_SIZE));
}

// The system aligns to pages of its own; room for a larger one is reserved with it.
Arena::Arena(std::size_t address_space, std::size_t page, std::size_t beside)
    : page_(page),
      size_(round_up(std::max<std::size_t>(address_space, 1), page)),
      beside_(beside),
      mapped_(size_ + beside + page - std::min(page, system_page())) {
  mapping_ = mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapping_ == MAP_FAILED) throw std::bad_alloc();
  madvise(mapping_, mapped_, MADV_DONTDUMP);  // a core dump would walk through all of it
  base_ = static_cast<char*>(mapping_);
  base_ += round_up<std::uintptr_t>(reinterpret_cast<std::uintptr_t>(mapping_), page_) -
           reinterpret_cast<std::uintptr_t>(mapping_);
  insert(base_, size_, Kind::absent);
}

Arena::~Arena() {
  munmap(mapping_, mapped_);
}

// Joins the new range with neighbours of its kind.
void Arena::insert(char* begin, std::size_t size, Kind kind) {
  auto next = ranges_.lower_bound(begin);
  if (next != ranges_.end() && next->second.kind == kind && next->first == begin + size) {
    size += next->second.size;
    next = erase(next);
  }
  if (next != ranges_.begin()) {
    const auto before = std::prev(next);
    if (before->second.kind == kind && before->first + before->second.size == begin) {
      begin = before->first;
      size += before->second.size;
      erase(before);
    }
  }
  ranges_[begin] = {size, kind, 0};
  index(kind).emplace(size, begin);
}

Arena::Ranges::iterator Arena::erase(Ranges::iterator range) {
  index(range->second.kind).erase({range->second.size, range->first});
  return ranges_.erase(range);
}

// The beginning of the smallest range of a kind that is large enough; null if there is none.
char* Arena::carve(Kind kind, std::size_t size) {
  const auto found = index(kind).lower_bound({size, nullptr});
  if (found == index(kind).end()) return nullptr;
  const auto [room, begin] = *found;
  erase(ranges_.find(begin));
  if (room > size) insert(begin + size, room - size, kind);
  return begin;
}

// Gives waiting pages back to the system, from the ends of the largest ranges.
void Arena::make_absent(std::size_t bytes) {
  while (bytes > 0 && !waiting_.empty()) {
    const auto [size, begin] = *waiting_.rbegin();
    const std::size_t part = std::min(size, bytes);
    erase(ranges_.find(begin));
    if (size > part) insert(begin, size - part, Kind::waiting);
    char* const end = begin + (size - part);
    madvise(end, part, MADV_DONTNEED);
    insert(end, part, Kind::absent);
    usage_.waiting -= part;
    bytes -= part;
  }
}

void* Arena::take(std::size_t bytes) {
  const std::size_t size = round_up(std::max<std::size_t>(bytes, 1), page_);
  const std::lock_guard lock(mutex_);
  char* block = carve(Kind::waiting, size);
  if (block != nullptr) {
    usage_.waiting -= size;
  } else {
    block = carve(Kind::absent, size);
    if (block == nullptr) return nullptr;
  }
  ranges_[block] = {size, Kind::live, bytes};
  usage_.live += size;
  usage_.peak = std::max(usage_.peak, usage_.live);
  if (usage_.live + usage_.waiting > usage_.peak) make_absent(usage_.live + usage_.waiting - usage_.peak);
  return block;
}

std::size_t Arena::give(void* data) {
  const std::lock_guard lock(mutex_);
  const auto found = ranges_.find(static_cast<char*>(data));
  const auto [size, kind, asked] = found->second;
  char* const begin = found->first;
  ranges_.erase(found);
  usage_.live -= size;
  usage_.waiting += size;
  insert(begin, size, Kind::waiting);
  return asked;
}

void Arena::trim() {
  const std::lock_guard lock(mutex_);
  make_absent(usage_.waiting);
  usage_.peak = usage_.live;
}

Arena::Usage Arena::usage() const {
  const std::lock_guard lock(mutex_);
  return usage_;
}

}  // namespace zero
