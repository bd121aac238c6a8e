#include "units/tier_loader.h"

#include <algorithm>

#include "backwards/unwatched.h"

namespace zero {
namespace {

// What the thread has read, and queued.
class Carried final : public Pending::State {
 public:
  Carried(Pending ran, std::shared_ptr<SideStream::Work> work) : ran_(std::move(ran)), work_(std::move(work)) {}

  void wait() override {
    ran_.wait();
    work_->finish();
  }
  void wait_in(const Stream&) override {
    ran_.wait();
    work_->join();
  }
  bool done() override { return ran_.done() && work_->finished(); }

 private:
  Pending ran_;
  std::shared_ptr<SideStream::Work> work_;
};

}  // namespace

TierLoad::~TierLoad() {
  try {
    pending_.wait();
  } catch (const std::exception&) {
    // Nobody wants it any more.
  }
}

void TierLoad::follow() {
  device_.is_host() ? std::exchange(pending_, {}).wait() : device_.follow(pending_);
}

TierLoader::TierLoader(std::unique_ptr<Store> store, Accounts& accounts)
    : store_(std::move(store)),
      device_(accounts.device()),
      staging_(accounts.staging(accounts.computing(Tier::host), staging_for(*store_, 1))) {
  if (device_.is_host() || store_->addressable()) return;
  stream_ = device_.side_stream();
  worker_ = std::make_unique<Worker>();
}

TierLoader::~TierLoader() {
  worker_.reset();
  settle();
}

std::shared_ptr<TierLoad> TierLoader::bring(Block& from, Buffer& to, std::int64_t at) {
  return std::make_shared<TierLoad>(begin(from, to, at), device_);
}

Pending TierLoader::begin(Block& from, Buffer& to, std::int64_t at) {
  const Unwatched unwatched;  // a copy is no operator of the forward that waits for it
  if (device_.is_host()) return from.read(0, {static_cast<char*>(to.data()) + at, from.bytes(), Dtype::u8});
  if (from.addressable()) return to.block().write(at, from.view());
  const std::shared_ptr<SideStream::Work> work = stream_->work();
  Pending ran = worker_->submit([this, work, &from, &to, at] { work->run([&] { carry(from, to.block(), at); }); });
  return Pending(std::make_shared<Carried>(std::move(ran), work));
}

// On the worker's thread. A buffer is read ahead of the one that is sent.
void TierLoader::carry(const Block& from, Block& to, std::int64_t at) try {
  const std::int64_t most = std::min(staging_.shape().transfer, staging_.shape().bytes());
  const std::int64_t stretches = (from.bytes() + most - 1) / most;
  const auto buffer = [](std::int64_t stretch) { return static_cast<std::size_t>(stretch) % Staging::kBuffers; };
  const auto view = [&](std::int64_t stretch) {
    return View{staging_.buffer(buffer(stretch)), std::min(most, from.bytes() - stretch * most), Dtype::u8};
  };
  for (std::int64_t next = 0; next <= stretches; ++next) {
    if (next < stretches) {
      Pending& reading = under_way_[buffer(next)];
      std::exchange(reading, {}).wait();
      reading = from.read(next * most, view(next));
    }
    if (next == 0) continue;
    Pending& sending = under_way_[buffer(next - 1)];
    std::exchange(sending, {}).wait();
    sending = to.write(at + (next - 1) * most, view(next - 1));
  }
  device_.follow_sends();
} catch (...) {
  settle();
  throw;
}

// Nothing reads or writes the buffers any more.
void TierLoader::settle() {
  for (Pending& each : under_way_) try {
      std::exchange(each, {}).wait();
    } catch (const std::exception&) {
      // Whoever it was for has been told of the first failure.
    }
}

}  // namespace zero
