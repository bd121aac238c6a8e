#include "comm/checked.h"

#include <string>
#include <vector>

#include "comm/decorated.h"
#include "comm/fingerprint.h"
#include "zero/error.h"

namespace zero {
namespace {

class Checked final : public Decorated {
 public:
  // `host` joins the same ranks in the host's memory.
  Checked(std::shared_ptr<CommunicatorImpl> inner, std::shared_ptr<CommunicatorImpl> host)
      : Decorated(std::move(inner)), host_(std::move(host)) {}

  Pending all_gather(ConstView shard, View whole) override {
    check(Collective::all_gather, shard, whole);
    return inner().all_gather(shard, whole);
  }
  Pending reduce_scatter(ConstView whole, View shard) override {
    check(Collective::reduce_scatter, whole, shard);
    return inner().reduce_scatter(whole, shard);
  }
  Pending all_reduce(View values) override {
    check(Collective::all_reduce, values, values);
    return inner().all_reduce(values);
  }
  Pending all_to_all(ConstView input, View output) override {
    check(Collective::all_to_all, input, output);
    return inner().all_to_all(input, output);
  }
  Pending broadcast(View values, int root) override {
    check(Collective::broadcast, values, values, root);
    return inner().broadcast(values, root);
  }
  Pending barrier() override {
    check(Collective::barrier, {}, {});
    return inner().barrier();
  }
  std::shared_ptr<CommunicatorImpl> split(int color, int key) override {
    compare(Fingerprint::split(++sequence_));
    auto group = inner().split(color, key);
    if (host_.get() == &inner()) return checked(std::move(group));
    return std::make_shared<Checked>(std::move(group), host_->split(color, key));
  }
  std::shared_ptr<CommunicatorImpl> on_device(int device) override {
    auto group = inner().on_device(device);
    return group == nullptr ? nullptr : std::make_shared<Checked>(std::move(group), host_);
  }

 private:
  void check(Collective operation, ConstView input, ConstView output, int root = -1) {
    compare(Fingerprint::of(++sequence_, operation, input, output, root));
  }

  void compare(const Fingerprint& own) {
    constexpr std::int64_t kBytes = sizeof(Fingerprint);
    std::vector<Fingerprint> calls(static_cast<std::size_t>(size()));
    try {
      host_->all_gather({&own, kBytes, Dtype::u8}, {calls.data(), kBytes * size(), Dtype::u8}).wait();
    } catch (const CommError& error) {
      throw CommError("rank " + std::to_string(rank()) + ": " + own.text() + ": comparing the calls: " + error.what());
    }
    require_same(calls, rank());
  }

  std::shared_ptr<CommunicatorImpl> host_;
  std::uint64_t sequence_ = 0;
};

}  // namespace

std::shared_ptr<CommunicatorImpl> checked(std::shared_ptr<CommunicatorImpl> inner) {
  auto host = inner;
  return std::make_shared<Checked>(std::move(inner), std::move(host));
}

}  // namespace zero
