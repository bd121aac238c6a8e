// Reads and writes of files that are under way together. No torch.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "memory/block.h"
#include "memory/disk_files.h"
#include "zero/disk.h"

namespace zero {

struct DiskTransfer {
  int file = -1;
  std::int64_t at = 0;
  char* memory = nullptr;
  std::int64_t bytes = 0;
  bool writes = false;
  std::size_t tag = 0;  // the caller's
  // When it is over: errno, or 0 where all bytes came or went; ENODATA where the file ended before.
  int error = 0;

  // What is left of it.
  std::int64_t left_at() const { return at + done_; }
  char* left_memory() const { return memory + done_; }
  std::int64_t left_bytes() const { return bytes - done_; }
  // Takes notice of what a part of it came to, bytes or -errno. True when it is over.
  bool advance(std::int64_t result);
  // To be submitted again.
  void begin() { done_ = stalls_ = error = 0; }

 private:
  std::int64_t done_ = 0;
  int stalls_ = 0;  // parts in a row that came to nothing
};

// What failed, for whom, and where: what a StoreError is made of.
struct DiskFault {
  std::string what, hint;
  [[noreturn]] void raise() const { throw StoreError(what, hint); }
};
DiskFault disk_fault(const std::string& whose, const DiskTransfer& transfer, const DiskFile& file);

class DiskQueue {
 public:
  virtual ~DiskQueue() = default;  // nothing may be under way
  virtual std::string_view name() const = 0;

  // The transfer stays where it is until wait() returns it. One thread, which is the one that waits.
  virtual void submit(DiskTransfer& transfer) = 0;
  // One that is over, whichever; null after wake(). What was interrupted or short has been continued.
  virtual DiskTransfer* wait() = 0;
  // Any thread.
  virtual void wake() = 0;
};

// `most`: as many transfers as are to be carried out at once; twice as many may be submitted. `buffers` is memory that
// transfers often have, which io_uring is told of. Throws ConfigError where `kind` cannot be had.
std::unique_ptr<DiskQueue> make_disk_queue(DiskQueueKind kind, DiskSystem& system, int most, std::span<char> buffers);

std::unique_ptr<DiskQueue> make_thread_queue(DiskSystem& system, int threads);
// Null where it cannot be had: `reason` says why.
std::unique_ptr<DiskQueue> make_uring_queue(DiskSystem& system, int most, std::span<char> buffers, std::string& reason);

}  // namespace zero
