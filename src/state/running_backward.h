// The backward of an engine, on every thread that works for it: the one that began it, and on a device, where LibTorch
// runs backwards on threads of its own, those.
#pragma once

#include <c10/util/ThreadLocalDebugInfo.h>

#include <memory>
#include <string_view>

namespace zero {

class RunningBackward : public c10::DebugInfoBase {
 public:
  // The innermost that this thread works for; null where it is none.
  static RunningBackward* current() { return static_cast<RunningBackward*>(c10::ThreadLocalDebugInfo::get(kKind)); }

  // Makes it current on this thread, and on those that carry out a backward begun here, as long as the guard lives.
  class Guard {
   public:
    explicit Guard(std::shared_ptr<RunningBackward> backward) : guard_(kKind, std::move(backward)) {}

   private:
    c10::DebugInfoGuard guard_;
  };

 private:
  static constexpr std::string_view kName = "a backward of libzero";
  static constexpr c10::DebugInfoKind kKind{&kName};
};

}  // namespace zero
