// A dispatch key by which a fallback sees a thread's operators.
#pragma once

#include <c10/core/DispatchKey.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <atomic>
#include <memory>

#include "base/lifetimes.h"

namespace zero {

// While one lives, operators of the thread that made it, and of the autograd threads that inherit its keys, pass the
// fallback of `kKey`. Counted: several share it. It may end on any thread; from another one, the key stays until the
// thread's next operator.
template <c10::DispatchKey kKey>
class SeesThread {
 public:
  SeesThread() : here_(ThreadShared<Count>::own()) {
    first_ = here_->seeing++ == 0;
    c10::impl::tls_set_dispatch_key_included(kKey, true);
  }
  ~SeesThread() {
    if (--here_->seeing == 0 && here_.get() == ThreadShared<Count>::here())
      c10::impl::tls_set_dispatch_key_included(kKey, false);
  }
  SeesThread(const SeesThread&) = delete;
  SeesThread& operator=(const SeesThread&) = delete;

  // Whether there was no other when it began, and is none now.
  bool first() const { return first_; }
  bool last() const { return here_->seeing == 1; }

  // All that saw this thread have ended, the last of them on another one.
  static void stop_if_none() {
    const Count* const here = ThreadShared<Count>::here();
    if (here != nullptr && here->seeing == 0) c10::impl::tls_set_dispatch_key_included(kKey, false);
  }

 private:
  struct Count {
    std::atomic<int> seeing = 0;
  };

  std::shared_ptr<Count> here_;
  bool first_ = false;
};

}  // namespace zero
