// Small numbers for what lives at the same time: each has the lowest that was free.
//
// Thread-safety: any thread.
#pragma once

#include <memory>
#include <mutex>
#include <set>

namespace zero {

class Seats : public std::enable_shared_from_this<Seats> {
 public:
  // The number, free again when nobody holds it any more.
  std::shared_ptr<const int> take();

 private:
  std::mutex mutex_;
  std::set<int> taken_;
};

}  // namespace zero
