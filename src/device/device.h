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
#include <string>

#include "device/kernels.h"
#include "memory/block.h"

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
    // When run() has ended: waits for its kernels.
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
  // Which of its kind, as in a View; -1 for the host.
  virtual int index() const = 0;
  // Whether its memory is the host's, which anybody may read.
  bool is_host() const { return index() < 0; }

  virtual std::unique_ptr<SideStream> side_stream() = 0;

  // All that this process may have there, and what of it is taken; zeros for the host.
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
  virtual std::unique_ptr<Block::Place> borrowed(void* memory) = 0;

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
  virtual void run(const Kernel& kernel) = 0;
  // Whether at::_scaled_mm multiplies matrices in FP8 there.
  virtual bool multiplies_float8() const = 0;
};

}  // namespace zero
