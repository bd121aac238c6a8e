#include "comm/metered.h"

#include <chrono>
#include <utility>

#include "comm/backend.h"

namespace zero {
namespace {

using Clock = std::chrono::steady_clock;

class Timed final : public Pending::State {
 public:
  Timed(Pending inner, Collective operation, Clock::time_point start, std::shared_ptr<TrafficMeter> meter)
      : inner_(std::move(inner)), operation_(operation), start_(start), meter_(std::move(meter)) {}

  void wait() override {
    inner_.wait();
    if (auto meter = std::exchange(meter_, nullptr))
      meter->time(operation_, std::chrono::duration<double>(Clock::now() - start_).count());
  }
  bool done() override { return inner_.done(); }

 private:
  Pending inner_;
  Collective operation_;
  Clock::time_point start_;
  std::shared_ptr<TrafficMeter> meter_;
};

class Metered final : public CommunicatorImpl {
 public:
  Metered(std::shared_ptr<CommunicatorImpl> inner, std::shared_ptr<TrafficMeter> meter)
      : inner_(std::move(inner)), meter_(std::move(meter)) {}

  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  std::string_view backend() const override { return inner_->backend(); }
  std::chrono::milliseconds time_limit() const override { return inner_->time_limit(); }

  Pending all_gather(ConstView shard, View whole) override {
    return account(Collective::all_gather, whole, [&] { return inner_->all_gather(shard, whole); });
  }
  Pending reduce_scatter(ConstView whole, View shard) override {
    return account(Collective::reduce_scatter, whole, [&] { return inner_->reduce_scatter(whole, shard); });
  }
  Pending all_reduce(View values) override {
    return account(Collective::all_reduce, values, [&] { return inner_->all_reduce(values); });
  }
  Pending all_to_all(ConstView input, View output) override {
    return account(Collective::all_to_all, input, [&] { return inner_->all_to_all(input, output); });
  }
  Pending broadcast(View values, int root) override {
    return account(Collective::broadcast, values, [&] { return inner_->broadcast(values, root); });
  }
  Pending barrier() override {
    return account(Collective::barrier, {}, [&] { return inner_->barrier(); });
  }
  std::shared_ptr<void> own_memory(std::int64_t bytes) override { return inner_->own_memory(bytes); }
  std::shared_ptr<void> common_memory(std::int64_t bytes) override { return inner_->common_memory(bytes); }
  std::shared_ptr<CommunicatorImpl> split(int color, int key) override {
    return metered(inner_->split(color, key), meter_);
  }

 private:
  template <class Call>
  Pending account(Collective operation, ConstView view, Call call) {
    const auto start = Clock::now();
    Pending pending = call();
    meter_->count(operation, wire_bytes(operation, view.bytes(), size_of(view.dtype), size()));
    auto timed = std::make_shared<Timed>(std::move(pending), operation, start, meter_);
    if (timed->done()) timed->wait();
    return Pending(std::move(timed));
  }

  std::shared_ptr<CommunicatorImpl> inner_;
  std::shared_ptr<TrafficMeter> meter_;
};

}  // namespace

Traffic TrafficMeter::snapshot() const {
  const std::lock_guard lock(mutex_);
  return traffic_;
}

void TrafficMeter::reset() {
  const std::lock_guard lock(mutex_);
  traffic_ = {};
}

void TrafficMeter::count(Collective operation, std::int64_t bytes) {
  const std::lock_guard lock(mutex_);
  ++traffic_[operation].calls;
  traffic_[operation].bytes += bytes;
}

void TrafficMeter::time(Collective operation, double seconds) {
  const std::lock_guard lock(mutex_);
  traffic_[operation].seconds += seconds;
}

std::int64_t wire_bytes(Collective operation, std::int64_t bytes, std::int64_t element, int size) {
  if (size == 1) return 0;
  switch (operation) {
    case Collective::all_gather:
    case Collective::reduce_scatter:
    case Collective::all_to_all: return bytes / size * (size - 1);
    case Collective::all_reduce:
      if (bytes <= kSmallAllReduce) return (size - 1) * bytes;
      return 2 * (size - 1) * Slices{bytes / element, size}.length() * element;
    case Collective::broadcast: return bytes;
    case Collective::barrier: return 0;
  }
  return 0;
}

std::shared_ptr<CommunicatorImpl> metered(std::shared_ptr<CommunicatorImpl> inner,
                                          std::shared_ptr<TrafficMeter> meter) {
  return std::make_shared<Metered>(std::move(inner), std::move(meter));
}

}  // namespace zero
