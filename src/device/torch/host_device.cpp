#include "device/torch/host_device.h"

#include <cstring>

#include "memory/store.h"
#include "memory/torch/arena_allocator.h"

namespace zero {
namespace {

// What has returned is done.
class AtOnce final : public SideStream::Work {
 public:
  void run(const std::function<void()>& task) override { task(); }
  void join() override {}
  void finish() override {}
  bool finished() override { return true; }
};

class NoStream final : public SideStream {
 public:
  std::shared_ptr<Work> work() override { return work_; }

 private:
  std::shared_ptr<Work> work_ = std::make_shared<AtOnce>();
};

}  // namespace

std::unique_ptr<SideStream> HostDevice::side_stream() {
  return std::make_unique<NoStream>();
}

void HostDevice::trim() {
  trim_arena();
}

std::unique_ptr<Block::Place> HostDevice::take(std::size_t bytes, Use use) {
  return in_memory(bytes == 0 ? nullptr : use == Use::lasting ? lasting_memory(bytes) : host_memory(bytes));
}

std::unique_ptr<Block::Place> HostDevice::borrowed(void* memory) {
  return in_memory({std::shared_ptr<void>(), memory});
}

Pending HostDevice::bring(void* host, const void* from, std::int64_t bytes) {
  to_host(host, from, bytes);
  return {};
}

Pending HostDevice::send(void* to, const void* host, std::int64_t bytes) {
  from_host(to, host, bytes);
  return {};
}

void HostDevice::copy(void* to, const void* from, std::int64_t bytes) {
  std::memcpy(to, from, static_cast<std::size_t>(bytes));
}

void HostDevice::zero(void* to, std::int64_t bytes) {
  std::memset(to, 0, static_cast<std::size_t>(bytes));
}

}  // namespace zero
