#include "base/worker.h"

#include <signal.h>

#include <exception>
#include <utility>

namespace zero {
namespace {

constexpr std::chrono::milliseconds kBetweenCalls{1};

}  // namespace

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
    error_ = std::move(error);
    done_ = true;
    completed_.notify_all();
  }

  // A thread that is not there in a forked process may have had the lock.
  void wait() override {
    std::unique_lock lock(mutex_, std::defer_lock);
    if (!origin_.here() && (!lock.try_lock() || !done_)) origin_.require("what was under way cannot be waited for");
    if (!lock) lock.lock();
    completed_.wait(lock, [this] { return done_; });
    if (error_) std::rethrow_exception(error_);
  }

  bool done() override {
    const std::lock_guard lock(mutex_);
    return done_;
  }

 private:
  ProcessOfOrigin origin_;
  std::function<void()> body_;
  std::mutex mutex_;
  std::condition_variable completed_;
  bool done_ = false;
  std::exception_ptr error_;
};

Worker::Worker() : thread_([this] { run(); }) {}

Worker::~Worker() {
  if (!origin_.here()) {
    new std::thread(std::move(thread_));  // which cannot be joined
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  ready_.notify_one();
  thread_.join();
}

Pending Worker::submit(std::function<void()> task) {
  origin_.require("this operation is not possible");
  auto state = std::make_shared<Task>(std::move(task));
  {
    const std::lock_guard lock(mutex_);
    queue_.push_back(state);
  }
  ready_.notify_one();
  return Pending(std::move(state));
}

void Worker::when_idle(std::chrono::milliseconds after, std::function<bool()> call) {
  {
    const std::lock_guard lock(mutex_);
    idle_after_ = after;
    idle_ = std::move(call);
  }
  ready_.notify_one();
}

bool Worker::has_tasks() const {
  const std::lock_guard lock(mutex_);
  return !queue_.empty();
}

void Worker::idle_at_once(bool on) {
  {
    const std::lock_guard lock(mutex_);
    idle_at_once_ += on ? 1 : -1;
  }
  ready_.notify_all();
}

std::shared_ptr<Worker::Task> Worker::next() {
  std::unique_lock lock(mutex_);
  const auto told = [this] { return stopping_ || !queue_.empty(); };
  while (!told()) {
    if (!idle_) {
      ready_.wait(lock);
      continue;
    }
    ready_.wait_for(lock, idle_after_, [&] { return told() || idle_at_once_ > 0; });
    const std::function<bool()> call = idle_;
    for (bool again = true; again && !told();) {
      lock.unlock();
      again = call();
      lock.lock();
    }
    if (idle_at_once_ > 0) ready_.wait_for(lock, kBetweenCalls, told);
  }
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
