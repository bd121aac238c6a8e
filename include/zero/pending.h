// What is under way.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

namespace zero {

// What an operation brought to this rank from its peers.
struct Moved {
  std::int64_t bytes = 0;
  std::int64_t across_hosts = 0;  // of these, from ranks on other hosts
  std::int64_t in_place = 0;  // of these, read where they lie in memory that the ranks have in common: nothing moved

  Moved& operator+=(const Moved& other) {
    bytes += other.bytes;
    across_hosts += other.across_hosts;
    in_place += other.in_place;
    return *this;
  }
  bool operator==(const Moved&) const = default;
};

// A queue of a device's work: the three numbers of a c10::Stream (c10::Stream::pack3).
struct Stream {
  std::int64_t id = 0;
  int device_index = 0;
  int device_type = 0;
  bool operator==(const Stream&) const = default;
};

// The completion of an asynchronous operation. Default-constructed: complete. Copies are of the same operation, of
// which one thread at a time asks.
class Pending {
 public:
  class State {
   public:
    virtual ~State() = default;
    virtual void wait() = 0;
    virtual void wait_in(const Stream&) { wait(); }
    virtual bool done() = 0;
    virtual Moved moved() const { return {}; }
  };

  Pending() = default;
  explicit Pending(const Moved& moved) : moved_(moved) {}  // complete, having moved that
  explicit Pending(std::shared_ptr<State> state) : state_(std::move(state)) {}

  // Blocks until the operation is complete. Throws what it failed with, a CommError for a collective; waiting again
  // rethrows.
  void wait() {
    if (state_) state_->wait();
  }
  // What is put into the stream from now on follows the operation. The host goes on where the operation is the device's
  // own, whose failures the device tells of; else as wait().
  void wait(const Stream& stream) {
    if (state_) state_->wait_in(stream);
  }
  // Whether it is complete, or has failed. Does not block.
  bool done() const { return !state_ || state_->done(); }
  // When it is complete: what it moved, counted where it was copied, received or read.
  Moved moved() const { return state_ ? state_->moved() : moved_; }

 private:
  std::shared_ptr<State> state_;
  Moved moved_;
};

}  // namespace zero
