#include "base/worker.h"

#include <signal.h>

#include <exception>
#include <utility>

namespace zero {

class Worker::Task final : public Pending::State {
 public:
  explicit Task(std::function<void()> body) : body_(std::move(body)) {}

  void run() {
    std::exception_ptr error;
    try {
      std::exchange(body_, nullptr)();
    } catch (...) {
      error = std::current_exception();
    }
    const std::lock_guard lock(mutex_);
    error_ = error;
    done_ = true;
    completed_.notify_all();
  }

  void wait() override {
    std::unique_lock lock(mutex_);
    completed_.wait(lock, [this] { return done_; });
    if (error_) std::rethrow_exception(error_);
  }

  bool done() override {
    const std::lock_guard lock(mutex_);
    return done_;
  }

 private:
  std::function<void()> body_;
  std::mutex mutex_;
  std::condition_variable completed_;
  bool done_ = false;
  std::exception_ptr error_;
};

Worker::Worker() : thread_([this] { run(); }) {}

Worker::~Worker() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  ready_.notify_one();
  thread_.join();
}

Pending Worker::submit(std::function<void()> task) {
  auto state = std::make_shared<Task>(std::move(task));
  {
    const std::lock_guard lock(mutex_);
    queue_.push_back(state);
  }
  ready_.notify_one();
  return Pending(std::move(state));
}

std::shared_ptr<Worker::Task> Worker::next() {
  std::unique_lock lock(mutex_);
  ready_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
  if (queue_.empty()) return nullptr;
  auto task = std::move(queue_.front());
  queue_.pop_front();
  return task;
}

void Worker::run() {
  sigset_t broken_pipe;
  sigemptyset(&broken_pipe);
  sigaddset(&broken_pipe, SIGPIPE);
  pthread_sigmask(SIG_BLOCK, &broken_pipe, nullptr);
  while (auto task = next()) task->run();
}

}  // namespace zero
