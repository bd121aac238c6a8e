// Memory on huge pages: fewer misses of the processor's address tables, and a disk is given it in large parts. No
// torch.
#pragma once

#include <cstddef>
#include <memory>

namespace zero {

constexpr std::size_t kHugePage = std::size_t{2} << 20;

// Uninitialised, aligned to huge pages; on them, where the system has them, but for the last, which it would not fill.
// Throws std::bad_alloc.
std::shared_ptr<void> huge_page_memory(std::size_t bytes);

}  // namespace zero
