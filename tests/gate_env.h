// The system's files, behind a gate: while it is shut, who makes a file waits until it is opened, or fails.
#pragma once

#include <condition_variable>
#include <mutex>
#include <string>
#include <vector>

#include "persist/env.h"
#include "zero/error.h"

namespace zero::test {

// In place of checkpoint_env() while it lives. Thread-safe.
class GateEnv final : public Env {
 public:
  GateEnv() { replace_checkpoint_env(this); }
  ~GateEnv() override { replace_checkpoint_env(nullptr); }

  void shut() { set(State::shut); }
  void open_gate() { set(State::open); }
  void fail_all() { set(State::failing); }

  void create_folder(const std::string& path) override { system_.create_folder(path); }
  std::unique_ptr<WritableFile> create(const std::string& path) override {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return state_ != State::shut; });
    if (state_ == State::failing) throw CheckpointError("no room for " + path);
    return system_.create(path);
  }
  std::unique_ptr<ReadableFile> open(const std::string& path) override { return system_.open(path); }
  void rename(const std::string& from, const std::string& to) override { system_.rename(from, to); }
  void sync_folder(const std::string& path) override { system_.sync_folder(path); }
  std::vector<FolderEntry> list(const std::string& path) override { return system_.list(path); }
  void remove(const std::string& path) override { system_.remove(path); }
  bool exists(const std::string& path) override { return system_.exists(path); }
  std::int64_t free_bytes(const std::string& path) override { return system_.free_bytes(path); }
  Lock lock(const std::string& path) override { return system_.lock(path); }

 private:
  enum class State : std::uint8_t { open, shut, failing };
  void set(State state) {
    const std::lock_guard lock(mutex_);
    state_ = state;
    changed_.notify_all();
  }

  Env& system_ = posix_env();
  std::mutex mutex_;
  std::condition_variable changed_;
  State state_ = State::open;
};

}  // namespace zero::test
