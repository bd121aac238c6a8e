// What a stretch of work takes and gives back of memory, in order. No torch.
//
// Thread-safety: one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/random.h"
#include "memory/address_plan.h"

namespace zero {

class AllocationRecord {
 public:
  // More blocks than that are not recorded, and the record is not whole.
  static constexpr std::size_t kMost = 65536;

  // The block's number; -1: it is not recorded.
  int taken(std::int64_t bytes) {
    if (blocks_.size() == kMost) whole_ = false;
    if (!whole_) return -1;
    note(static_cast<std::uint64_t>(bytes));
    blocks_.push_back({bytes, event_++});
    return static_cast<int>(blocks_.size()) - 1;
  }
  void given(int number) {
    if (number < 0) return;
    note(~static_cast<std::uint64_t>(number));
    blocks_[static_cast<std::size_t>(number)].end = event_++;
  }
  void clear() {
    blocks_.clear();
    signature_ = 0;
    event_ = 0;
    whole_ = true;
  }

  bool whole() const { return whole_; }
  const std::vector<Lifetime>& blocks() const { return blocks_; }
  // Two records alike have the same.
  std::uint64_t signature() const { return signature_; }

 private:
  void note(std::uint64_t what) { signature_ = derived(signature_, what); }

  std::vector<Lifetime> blocks_;
  std::uint64_t signature_ = 0;
  int event_ = 0;
  bool whole_ = true;
};

}  // namespace zero
