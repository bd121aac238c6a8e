#include "comm/checked.h"

#include <string>
#include <vector>

#include "comm/fingerprint.h"
#include "zero/error.h"

namespace zero {
namespace {

class Checked final : public CommunicatorImpl {
 public:
  explicit Checked(std::shared_ptr<CommunicatorImpl> inner) : inner_(std::move(inner)) {}

  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  std::string_view backend() const override { return inner_->backend(); }
  std::chrono::milliseconds time_limit() const override { return inner_->time_limit(); }
  Topology topology() const override { return inner_->topology(); }

  Pending all_gather(ConstView shard, View whole) override {
    check(Collective::all_gather, shard, whole);
    return inner_->all_gather(shard, whole);
  }
  Pending reduce_scatter(ConstView whole, View shard) override {
    check(Collective::reduce_scatter, whole, shard);
    return inner_->reduce_scatter(whole, shard);
  }
  Pending all_reduce(View values) override {
    check(Collective::all_reduce, values, values);
    return inner_->all_reduce(values);
  }
  Pending all_to_all(ConstView input, View output) override {
    check(Collective::all_to_all, input, output);
    return inner_->all_to_all(input, output);
  }
  Pending broadcast(View values, int root) override {
    check(Collective::broadcast, values, values, root);
    return inner_->broadcast(values, root);
  }
  Pending barrier() override {
    check(Collective::barrier, {}, {});
    return inner_->barrier();
  }
  std::shared_ptr<void> own_memory(std::int64_t bytes) override { return inner_->own_memory(bytes); }
  std::shared_ptr<void> common_memory(std::int64_t bytes) override { return inner_->common_memory(bytes); }
  std::shared_ptr<CommunicatorImpl> split(int color, int key) override {
    compare(Fingerprint::split(++sequence_));
    return checked(inner_->split(color, key));
  }

 private:
  void check(Collective operation, ConstView input, ConstView output, int root = -1) {
    compare(Fingerprint::of(++sequence_, operation, input, output, root));
  }

  void compare(const Fingerprint& own) {
    constexpr std::int64_t kBytes = sizeof(Fingerprint);
    std::vector<Fingerprint> calls(static_cast<std::size_t>(size()));
    try {
      inner_->all_gather({&own, kBytes, Dtype::u8}, {calls.data(), kBytes * size(), Dtype::u8}).wait();
    } catch (const CommError& error) {
      throw CommError("rank " + std::to_string(rank()) + ": " + own.text() + ": comparing the calls: " + error.what());
    }
    require_same(calls, rank());
  }

  std::shared_ptr<CommunicatorImpl> inner_;
  std::uint64_t sequence_ = 0;
};

}  // namespace

std::shared_ptr<CommunicatorImpl> checked(std::shared_ptr<CommunicatorImpl> inner) {
  return std::make_shared<Checked>(std::move(inner));
}

}  // namespace zero
