// The dispatcher's only door: a boxed fallback on a thread-local dispatch key that sees every operator
// of a thread before it runs, and asks the engines of the units among its arguments for their values.
#pragma once

#include <memory>

namespace zero::dispatch_hook {

// While it lives, the fallback does not see this thread's operators: for code that rearranges storages.
class Off {
 public:
  Off();
  ~Off();
  Off(const Off&) = delete;
  Off& operator=(const Off&) = delete;

 private:
  bool excluded_before_;
};

struct Watchers;

// While it lives, the fallback sees the operators of the thread that made it (and of the autograd threads that inherit
// its keys). Counted: engines on one thread share it. It may end on any thread.
class Watch {
 public:
  Watch();
  ~Watch();
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

 private:
  std::shared_ptr<Watchers> watchers_;
};

// How many threads of the process it sees operators of.
int watched_threads();

}  // namespace zero::dispatch_hook
