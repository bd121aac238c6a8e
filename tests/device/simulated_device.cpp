#include "device/simulated_device.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include <atomic>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "device/accelerator.h"
#include "device/torch/devices.h"

namespace zero::test {
namespace {

std::atomic<bool> multiplies = false;

// Where one waits for another.
struct Sites {
  accelerator::Site begin, join;
};

// Says at which site it is.
class SitedWork final : public SideStream::Work {
 public:
  SitedWork(std::shared_ptr<Work> inner, Sites sites) : inner_(std::move(inner)), sites_(sites) {}

  void run(const std::function<void()>& task) override {
    const accelerator::AtSite begin(sites_.begin);
    inner_->run([&] {
      const accelerator::AtSite other(accelerator::Site::other);
      task();
    });
  }
  void join() override {
    const accelerator::AtSite join(sites_.join);
    inner_->join();
  }
  void finish() override {
    const accelerator::AtSite finish(accelerator::Site::finish);
    inner_->finish();
  }
  bool finished() override { return inner_->finished(); }

 private:
  std::shared_ptr<Work> inner_;
  Sites sites_;
};

class SitedStream final : public SideStream {
 public:
  SitedStream(std::unique_ptr<SideStream> inner, Sites sites) : inner_(std::move(inner)), sites_(sites) {}
  std::shared_ptr<Work> work() override { return std::make_shared<SitedWork>(inner_->work(), sites_); }

 private:
  std::unique_ptr<SideStream> inner_;
  Sites sites_;
};

}  // namespace

std::unique_ptr<SideStream> SimulatedDevice::side_stream() {
  return std::make_unique<SitedStream>(TorchDevice::side_stream(),
                                       Sites{accelerator::Site::begin, accelerator::Site::join});
}

std::unique_ptr<SideStream> SimulatedDevice::copy_stream() {
  return std::make_unique<SitedStream>(TorchDevice::copy_stream(),
                                       Sites{accelerator::Site::copy, accelerator::Site::copied});
}

void SimulatedDevice::follow(Pending operation) {
  const accelerator::AtSite follow(accelerator::Site::follow);
  TorchDevice::follow(std::move(operation));
}

void SimulatedDevice::launch(const OwnKernel& kernel) {
  std::vector<accelerator::Access> ranges;
  const auto there = [&ranges]<class T>(T*& array, std::int64_t bytes) {
    if (array == nullptr) return;
    ranges.push_back({array, static_cast<std::size_t>(bytes), !std::is_const_v<T>});
    array = static_cast<T*>(accelerator::shadow(array));
  };
  OwnKernel here = kernel;
  std::visit([&](auto& each) { each.each_range(there); }, here);
  accelerator::launch(c10::impl::VirtualGuardImpl(accelerator::kType).getStream(where()), ranges,
                      [here = std::move(here)] { run_on_host(here); });
}

bool SimulatedDevice::multiplies_float8() const {
  return multiplies;
}

void multiply_float8(bool there) {
  multiplies = there;
}

void install_simulated_device() {
  register_devices(accelerator::kType, [](c10::Device where) { return std::make_unique<SimulatedDevice>(where); });
}

}  // namespace zero::test
