// Where tensors are, and what is computed with them there: the one door to a device's memory and kernels. No torch.
//
// Pointers are of the device's memory, but for those that are said to be the host's. Work is queued on the calling
// thread's current stream of the device, in the order of the calls, and may be under way when a call returns; a call
// that brings something to the host waits for it. On the host itself everything is done when a call returns.
// Kernels throw nothing; what fails on a device is thrown by a later call that waits.
//
// Thread-safety: every function may be called by several threads at once, for memory that no other call writes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "base/exact_sum.h"
#include "device/accumulate.h"
#include "device/update.h"
#include "memory/block.h"
#include "zero/dtype.h"

namespace zero {

class Device {
 public:
  virtual ~Device() = default;

  // "cpu", "cuda:1"
  virtual std::string name() const = 0;
  // Of a View: which of its kind, -1 for the host.
  virtual int index() const = 0;
  // Whether its memory is the host's, which anybody may read.
  bool is_host() const { return index() < 0; }

  // The same task for another thread, where it queues on what is this thread's current stream now.
  virtual std::function<void()> on_this_stream(std::function<void()> task) = 0;

  // Uninitialised memory, aligned to 64 bytes at least, which blocks are made of: for what stays, or for what passes
  // through. Null for no bytes. Throws std::bad_alloc, or what the device's allocator does.
  enum class Use : std::uint8_t { lasting, passing };
  virtual std::unique_ptr<Block::Place> take(std::size_t bytes, Use use) = 0;

  // Between the device and the host's memory, which may be used again when they return.
  virtual void to_host(void* host, const void* from, std::int64_t bytes) = 0;
  virtual void from_host(void* to, const void* host, std::int64_t bytes) = 0;

  virtual void copy(void* to, const void* from, std::int64_t bytes) = 0;
  virtual void zero(void* to, std::int64_t bytes) = 0;
  // `count` values of f32 or f64.
  virtual void fill(void* to, Dtype dtype, std::int64_t count, double value) = 0;
  // Rounded to nearest.
  virtual void convert(const void* from, Dtype from_dtype, void* to, Dtype to_dtype, std::int64_t count) = 0;
  // sum += addend, in the wider of the two dtypes, rounded to that of the sum.
  virtual void add(void* sum, Dtype sum_dtype, const void* addend, Dtype dtype, std::int64_t count) = 0;
  // See device/accumulate.h.
  virtual void fold(const Fold& how, std::span<void* const> levels, Dtype kept, const void* gradient, Dtype dtype,
                    std::int64_t count) = 0;
  // Of f32 or f64, in place.
  virtual void multiply(void* values, Dtype dtype, std::int64_t count, double factor) = 0;
  // Waits. See base/exact_sum.h: the same sum on every device.
  virtual void add_squares(const void* values, Dtype dtype, std::int64_t count, ExactSum& sum,
                           std::int64_t& nonfinite) = 0;

  // See device/update.h.
  virtual void update(const Optimizer& optimizer, const UpdateFactors& factors, const UpdateRange& range) = 0;
  // See device/weights.h.
  virtual void keep_rest(const void* values, void* rest, std::int64_t count) = 0;
  virtual void drop_misfits(const void* written, void* rest, std::int64_t count) = 0;
  virtual void adopt_written(const void* written, Dtype stored, void* main, std::int64_t count) = 0;
};

}  // namespace zero
