// The dispatcher's only door: a boxed fallback on a thread-local dispatch key that sees every operator
// of a thread before it runs, and asks the pagers of the units among its arguments for their values.
#pragma once

namespace zero {

class Pager;

namespace window {

// While it lives, the fallback does not see this thread's operators: for code that rearranges storages.
class Blind {
 public:
  Blind();
  ~Blind();
  Blind(const Blind&) = delete;
  Blind& operator=(const Blind&) = delete;

 private:
  bool excluded_before_;
};

// Lets the fallback see the operators of this thread (and of the autograd threads that inherit its
// keys). Counted: engines on one thread share it.
void watch();
void unwatch();

// The pager whose micro-batch is between its first parameter and its backward on this thread.
// At most one: the engine used last, where there are several.
void enter(Pager* pager);
void leave(Pager* pager);
Pager* open();

// Whether any engine's backward runs on this thread: no window opens in it.
void set_in_backward(bool running);
bool in_backward();

}  // namespace window
}  // namespace zero
