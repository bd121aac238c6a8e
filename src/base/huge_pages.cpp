#include "base/huge_pages.h"

#include <sys/mman.h>

#include <cstdint>
#include <new>

#include "base/elements.h"

namespace zero {

std::shared_ptr<void> huge_page_memory(std::size_t bytes) {
  const std::size_t size = bytes + kHugePage;
  void* const room = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (room == MAP_FAILED) throw std::bad_alloc();
  const auto begin = reinterpret_cast<std::uintptr_t>(room);
  void* const data = static_cast<char*>(room) + (round_up(begin, kHugePage) - begin);
  madvise(data, bytes / kHugePage * kHugePage, MADV_HUGEPAGE);
  return {data, [room, size](void*) { munmap(room, size); }};
}

}  // namespace zero
