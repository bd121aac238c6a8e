// What the dispatcher's fallback (operators/dispatch.cpp) does not see of the threads that it watches.
#pragma once

#include <c10/core/DispatchKey.h>

#include <atomic>

namespace zero {

// The fallback's own: no tensor has it; threads include and exclude it.
inline constexpr c10::DispatchKey kWatchKey = c10::DispatchKey::DeferredInit;

// The other fallback's, below autograd (deferred/deferred_hook.cpp): deferred tensors have it, threads include it.
inline constexpr c10::DispatchKey kBelowKey = c10::DispatchKey::Fake;

// Threads of the process whose operators the fallback sees.
inline std::atomic<int> watched_threads = 0;

// While it lives, the fallback does not see this thread's operators: for code that rearranges storages.
class Unwatched {
 public:
  Unwatched();
  ~Unwatched();
  Unwatched(const Unwatched&) = delete;
  Unwatched& operator=(const Unwatched&) = delete;

 private:
  bool excluded_before_;
};

}  // namespace zero
