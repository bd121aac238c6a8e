// A thread that runs tasks in the order in which they were submitted.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "zero/pending.h"

namespace zero {

// Thread-safe. A task must not destroy its own worker. To its thread, and to those that its tasks
// start, a broken connection is an error and not a SIGPIPE.
class Worker {
 public:
  Worker();
  ~Worker();  // runs what was submitted, then joins
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  // The Pending completes when the task has run; its wait() rethrows what the task threw.
  Pending submit(std::function<void()> task);

 private:
  class Task;
  std::shared_ptr<Task> next();
  void run();

  std::mutex mutex_;
  std::condition_variable ready_;
  std::deque<std::shared_ptr<Task>> queue_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace zero
