// A thread that carries out operations in their order, and on a device's stream of its own. No torch.
#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "base/worker.h"
#include "device/device.h"

namespace zero {

// work() and stop() are the submitting thread's, carry() and settle() the agreeing one's.
class Carrier {
 public:
  explicit Carrier(std::unique_ptr<SideStream> stream) : stream_(std::move(stream)) {}
  ~Carrier() { stop(); }
  Carrier(const Carrier&) = delete;
  Carrier& operator=(const Carrier&) = delete;

  // Of the next operation, behind what the calling thread has queued by now.
  std::shared_ptr<SideStream::Work> work() { return latest_ = stream_->work(); }
  SideStream& stream() { return *stream_; }
  Worker& worker() { return *worker_; }
  Pending carry(std::function<void()> task) { return worker_->submit(std::move(task)); }
  // Returns when all that was given to carry() has ended, well or not; what the calling thread queues from now on comes
  // behind what that has queued.
  void settle() {
    const auto work = stream_->work();
    worker_->submit([&work] { work->run([] {}); }).wait();
    work->join();
  }
  // What it carried has failed, so that it carries nothing more. On its thread.
  bool failed() const { return failed_; }
  void fail() { failed_ = true; }
  // What was given to carry() is done, and nothing may be given to it from here on.
  void stop() noexcept {
    worker_.reset();
    if (const auto latest = std::exchange(latest_, nullptr)) latest->join();
  }

 private:
  std::unique_ptr<SideStream> stream_;
  std::shared_ptr<SideStream::Work> latest_;
  bool failed_ = false;
  std::unique_ptr<Worker> worker_ = std::make_unique<Worker>();
};

// Of an exchange: null where everything is carried out where it is agreed on.
struct Carriers {
  std::unique_ptr<Carrier> gathers = {}, reductions = {};

  // On whose stream gathers go, one's own or for others.
  Carrier& of_gathers(Carrier& agreeing) const { return gathers ? *gathers : agreeing; }
  // What comes now comes behind all that they were given.
  void settle() const {
    for (const auto* const each : {&gathers, &reductions})
      if (*each) (*each)->settle();
  }
  void stop() const noexcept {
    for (const auto* const each : {&gathers, &reductions})
      if (*each) (*each)->stop();
  }
};

}  // namespace zero
