// What is under way.
#pragma once

#include <memory>
#include <utility>

namespace zero {

// The completion of an asynchronous operation. Default-constructed: complete.
class Pending {
 public:
  class State {
   public:
    virtual ~State() = default;
    virtual void wait() = 0;
    virtual bool done() = 0;
  };

  Pending() = default;
  explicit Pending(std::shared_ptr<State> state) : state_(std::move(state)) {}

  // Blocks until the operation is complete. Throws what it failed with, a CommError for a collective; waiting again
  // rethrows.
  void wait() {
    if (state_) state_->wait();
  }
  bool done() const { return !state_ || state_->done(); }

 private:
  std::shared_ptr<State> state_;
};

}  // namespace zero
