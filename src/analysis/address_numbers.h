// Addresses and a number for each, in one array: what comes and goes all the time allocates nothing. No torch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace zero {

class Places {
 public:
  // Of an address that is there, its number.
  std::optional<std::uint32_t> find(const void* address) const {
    const Entry& entry = entries_[slot_of(address)];
    return entry.address == nullptr ? std::nullopt : std::optional(entry.number);
  }

  // `address` is not null, and not there yet.
  void add(const void* address, std::uint32_t number) {
    if (2 * ++count_ > entries_.size()) grow();
    entries_[slot_of(address)] = {address, number};
  }

  // The address is there. Entries behind it that had to make way for it come nearer to where they belong.
  void remove(const void* address) {
    --count_;
    std::size_t hole = slot_of(address);
    for (std::size_t next = after(hole); entries_[next].address != nullptr; next = after(next)) {
      const std::size_t wanted = home_of(entries_[next].address);
      if (((next - wanted) & mask()) < ((next - hole) & mask())) continue;
      entries_[hole] = entries_[next];
      hole = next;
    }
    entries_[hole] = {};
  }

 private:
  struct Entry {
    const void* address = nullptr;
    std::uint32_t number = 0;
  };

  std::size_t mask() const { return entries_.size() - 1; }
  std::size_t after(std::size_t slot) const { return (slot + 1) & mask(); }
  // By the middle bits of a product with the golden ratio, since addresses end in zeros.
  std::size_t home_of(const void* address) const {
    constexpr std::uint64_t golden = 0x9E3779B97F4A7C15;
    return static_cast<std::size_t>((reinterpret_cast<std::uintptr_t>(address) * golden) >> 32) & mask();
  }
  // Where the address is, or belongs.
  std::size_t slot_of(const void* address) const {
    std::size_t slot = home_of(address);
    while (entries_[slot].address != nullptr && entries_[slot].address != address) slot = after(slot);
    return slot;
  }
  void grow() {
    std::vector<Entry> before = std::exchange(entries_, std::vector<Entry>(2 * entries_.size()));
    for (const Entry& entry : before)
      if (entry.address != nullptr) entries_[slot_of(entry.address)] = entry;
  }

  std::vector<Entry> entries_ = std::vector<Entry>(1024);  // a power of two, at most half of it used
  std::size_t count_ = 0;
};

}  // namespace zero
