// Where tensors are, and what is computed with them there: the one door to a device's memory and kernels. No torch.
//
// Pointers are of the device's memory, but for those that are said to be the host's. Work is queued on the calling
// thread's current stream of the device, in the order of the calls, and may be under way when a call returns; a call
// that brings something to the host waits for it. On the host itself everything is done when a call returns.
// Memory that is given back on another stream than the one on which it was taken stays until both are done with it.
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

#include "base/float8_scale.h"
#include "device/accumulate.h"
#include "device/update.h"
#include "memory/block.h"
#include "zero/dtype.h"

namespace zero {

// A stream of a device for what another thread does, beside the thread that asks for it. What the two threads know of
// each other their streams are told: kernels come in the order in which the host's code does, and no thread waits.
class SideStream {
 public:
  virtual ~SideStream() = default;

  class Work {
   public:
    virtual ~Work() = default;
    // By the other thread: runs the task, whose kernels are queued on the stream, behind those that the thread that
    // made this had queued on its own by then.
    virtual void run(const std::function<void()>& task) = 0;
    // When run() has ended: what the calling thread queues from now on comes behind them.
    virtual void join() = 0;
    // Likewise: waits for them.
    virtual void finish() = 0;
    virtual bool finished() = 0;
  };
  virtual std::shared_ptr<Work> work() = 0;
};

class Device {
 public:
  virtual ~Device() = default;

  // "cpu", "cuda:1"
  virtual std::string name() const = 0;
  // Of a View: which of its kind, -1 for the host.
  virtual int index() const = 0;
  // Whether its memory is the host's, which anybody may read.
  bool is_host() const { return index() < 0; }

  virtual std::unique_ptr<SideStream> side_stream() = 0;

  // Of what this process may have there: all of it, and what is taken. Not of the host.
  struct Memory {
    std::int64_t all, taken;
  };
  virtual Memory memory() const = 0;
  // Gives back to the device, or to the system, what an allocator keeps and nobody uses.
  virtual void trim() = 0;
  // Uninitialised memory, aligned to 64 bytes at least, which blocks are made of: for what stays, or for what passes
  // through. Null for no bytes. Throws std::bad_alloc, or what the device's allocator does.
  enum class Use : std::uint8_t { lasting, passing };
  virtual std::unique_ptr<Block::Place> take(std::size_t bytes, Use use) = 0;
  // Memory of constant size, of which pieces are taken and given back. They keep it alive.
  class Arena {
   public:
    static constexpr std::int64_t kAlign = 64;  // bytes, of which each piece takes a multiple
    virtual ~Arena() = default;
    // As take(); null where there is no room in one piece.
    virtual std::unique_ptr<Block::Place> take(std::size_t bytes) = 0;
  };
  // Null on the host, whose memory the process has an arena for.
  virtual std::unique_ptr<Arena> arena(std::size_t bytes) = 0;
  // The host's memory, pinned where copies between it and the device are quicker then.
  virtual std::unique_ptr<Block::Place> take_of_host(std::size_t bytes) = 0;
  // Memory of the device that somebody else has, and keeps.
  virtual std::unique_ptr<Block::Place> lent(void* memory) = 0;

  // What the calling thread queues from now on comes behind an operation of the device's own; any other is waited for.
  virtual void follow(Pending operation) = 0;

  // Between the device and the host's memory, beside what is computed:
  // behind what the calling thread has queued by now.
  // Until the host has waited for it neither memory may be used otherwise; follow() has what a thread queues next come
  // behind it. Quick where the host's memory is that of take_of_host(). Places read and write so.
  virtual Pending bring(void* host, const void* from, std::int64_t bytes) = 0;
  virtual Pending send(void* to, const void* host, std::int64_t bytes) = 0;
  // What the calling thread queues from now on comes behind all that was sent.
  virtual void follow_sends() = 0;
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
  // Adds to kSquareLimbs numbers, see base/exact_sum.h: the same sum on every device.
  virtual void add_squares(const void* values, Dtype dtype, std::int64_t count, std::int64_t* limbs) = 0;

  // See device/update.h. What is read as weights may be where the input is written.
  virtual void update(const Optimizer& optimizer, const UpdateFactors& factors, const UpdateRange& range) = 0;
  virtual void read_weights(const UpdateRange& range, void* weights) = 0;
  virtual void update_moments(const Optimizer& optimizer, const UpdateFactors& factors, const UpdateRange& range,
                              const void* weights, void* input, Dtype input_dtype) = 0;
  virtual void apply_step(double kept, double size, const void* step, const UpdateFactors& factors,
                          const UpdateRange& range) = 0;
  // See base/float8_blocks.h.
  virtual void encode(const void* values, Dtype dtype, std::uint8_t* out, std::int64_t count) = 0;
  virtual void decode(const std::uint8_t* in, void* values, Dtype dtype, std::int64_t count) = 0;
  // See base/float8_arrays.h.
  virtual void find_largest(const void* values, Dtype dtype, std::int64_t count, float* largest, float* noted) = 0;
  virtual void to_float8(Float8Format format, const void* values, Dtype dtype, std::int64_t count, float given,
                         Float8Scale* scale, std::uint8_t* codes) = 0;
  virtual void from_float8(Float8Format format, const std::uint8_t* codes, void* values, std::int64_t count) = 0;
  // Whether at::_scaled_mm multiplies matrices in FP8 there.
  virtual bool multiplies_float8() const = 0;
  // See device/written_weights.h.
  virtual void keep_rest(const void* values, void* rest, std::int64_t count) = 0;
  virtual void drop_misfits(const void* written, void* rest, std::int64_t count) = 0;
  virtual void adopt_written(const void* written, Dtype stored, void* main, std::int64_t count) = 0;
};

}  // namespace zero
