// A file that is written behind its caller: while one stretch is on its way to the disk, the next is gathered. No
// torch.
#pragma once

#include <array>
#include <cstdint>
#include <memory>

#include "base/worker.h"
#include "persist/env.h"

namespace zero {

// For one thread. What a write throws, a later call does; then the file is to be given up.
class WriteBehind {
 public:
  // Bytes of a stretch; at most two of them are held.
  static constexpr std::int64_t kStretch = std::int64_t{8} << 20;

  // Of a file that gets about so many bytes. Stretches begin on pages, of the file where it is on one now.
  WriteBehind(std::unique_ptr<WritableFile> file, std::int64_t bytes);

  // Copies them.
  void gather(const char* bytes, std::int64_t count);
  // From where they lie, until the next call or finish() has returned. Nothing may be gathered beside it.
  void pass(const char* bytes, std::int64_t count);
  // Brings all to the disk, and closes the file.
  void finish();

 private:
  void send();

  std::unique_ptr<WritableFile> file_;
  std::int64_t stretch_;
  std::array<std::shared_ptr<void>, 2> memory_;  // the first is being filled
  std::int64_t filled_ = 0;
  Pending before_;
  Worker writer_;  // ends before what it reads
};

}  // namespace zero
