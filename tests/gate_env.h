// The system's files, behind a gate: while it is shut, who makes a file waits until it is opened, or fails.
#pragma once

#include <condition_variable>
#include <mutex>
#include <string>

#include "passing_env.h"
#include "zero/error.h"

namespace zero::test {

// In place of checkpoint_env() while it lives. Thread-safe.
class GateEnv final : public PassingEnv {
 public:
  GateEnv() : PassingEnv(posix_env()) { replace_checkpoint_env(this); }
  ~GateEnv() override { replace_checkpoint_env(nullptr); }

  void shut() { set(State::shut); }
  void open_gate() { set(State::open); }
  void fail_all() { set(State::failing); }

  std::unique_ptr<WritableFile> create(const std::string& path, Caching caching) override {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return state_ != State::shut; });
    if (state_ == State::failing) throw CheckpointError("no room for " + path);
    return PassingEnv::create(path, caching);
  }

 private:
  enum class State : std::uint8_t { open, shut, failing };
  void set(State state) {
    const std::lock_guard lock(mutex_);
    state_ = state;
    changed_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  State state_ = State::open;
};

}  // namespace zero::test
