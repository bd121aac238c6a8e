// The gradient of a unit that is held from one micro-batch to the next, in blocks of a store: in place where they lie
// where they are computed with, else stretch by stretch. No torch.
//
// Thread-safety: one thread at a time, whose Staging it is given.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "device/device.h"
#include "memory/staged_pass.h"
#include "memory/store.h"
#include "zero/dtype.h"
#include "zero/layout.h"

namespace zero {

class HeldGradient {
 public:
  // Elements, in the unit, and dtype in which they are held, sum by sum (see AccumulateStep). `device` computes
  // with them: so do Stagings.
  HeldGradient(Device& device, Slice slice, Dtype dtype) : device_(&device), slice_(slice), dtype_(dtype) {}

  // Uninitialised.
  void take(Store& store, int unit, int levels);
  void reset() { levels_.clear(); }
  explicit operator bool() const { return !levels_.empty(); }

  const Slice& slice() const { return slice_; }
  Dtype dtype() const { return dtype_; }
  Device& device() const { return *device_; }

  // Elements of the unit in the sum of the step, which is the first, and in memory.
  View view(const Slice& elements) const;
  // None of it is held.
  void become(Dtype dtype) { *this = HeldGradient(*device_, slice_, dtype); }
  // Which bytes of a block they are, to be read.
  BlockPart part(const Slice& elements) const;

  // In all sums.
  void fill_with_zeros(Staging& staging, const Slice& elements);
  // The step of the sum on these elements, by the end of the passage; `gradient` is of them, null: zeros.
  void add(StagedPass& passage, const AccumulateStep& fold, const Slice& elements,
           const std::shared_ptr<Block>& gradient, Dtype dtype);
  // The sum's elements, a stretch at a time: `first` counts from the first of them. Cut at multiples of 16.
  using Read = std::function<void(const void* values, std::int64_t first, std::int64_t count)>;
  void read(Staging& staging, const Slice& elements, const Read& use) const;
  // The elements of this one of the sums in another dtype, to those of a block from `first` on.
  void convert_to(Staging& staging, int level, const Slice& elements, Block& to, std::int64_t first, Dtype dtype) const;
  // The same values in another dtype, f32 or f64.
  HeldGradient widened(Staging& staging, Store& store, int unit, Dtype dtype) const;

 private:
  BlockPart part(const Block& level, Dtype dtype, const Slice& elements, Access way) const;

  Device* device_;
  Slice slice_;
  Dtype dtype_;
  std::vector<Block> levels_;
};

}  // namespace zero
