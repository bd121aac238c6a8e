// A thread that runs tasks in the order in which they were submitted.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "base/lifetimes.h"
#include "zero/pending.h"

namespace zero {

// Thread-safe. A task must not destroy its own worker. To its thread, and to those that its tasks
// start, a broken connection is an error and not a SIGPIPE. In a process that was forked from the worker's, submitting
// a task and waiting for one that was not done throw StateError.
class Worker {
 public:
  Worker();
  ~Worker();  // runs what was submitted, then joins
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  // The Pending completes when the task has run; its wait() rethrows what the task threw.
  Pending submit(std::function<void()> task);

  // `call`, on the worker's thread, whenever it has had no task for so long; again at once where it returns true.
  // Throws nothing.
  void when_idle(std::chrono::milliseconds after, std::function<bool()> call);
  // As often as it is on, more than off, it need not have had no task for so long.
  void idle_at_once(bool on);
  // Whether tasks wait for their turn.
  bool has_tasks() const;

 private:
  class Task;
  std::shared_ptr<Task> next();
  void run();

  ProcessOfOrigin origin_;
  mutable std::mutex mutex_;
  std::condition_variable ready_;
  std::deque<std::shared_ptr<Task>> queue_;
  bool stopping_ = false;
  std::chrono::milliseconds idle_after_{};
  std::function<bool()> idle_;  // empty: none
  int idle_at_once_ = 0;
  std::thread thread_;
};

}  // namespace zero
