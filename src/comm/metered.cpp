#include "comm/metered.h"

#include <chrono>
#include <utility>

#include "comm/decorated.h"

namespace zero {
namespace {

using Clock = std::chrono::steady_clock;

class Timed final : public Pending::State {
 public:
  Timed(Pending inner, Collective operation, Clock::time_point start, std::shared_ptr<TrafficMeter> meter)
      : inner_(std::move(inner)), operation_(operation), start_(start), meter_(std::move(meter)) {}

  void wait() override {
    inner_.wait();
    count();
  }
  void wait_in(const Stream& stream) override {
    inner_.wait(stream);
    count();
  }
  bool done() override { return inner_.done(); }
  Moved moved() const override { return inner_.moved(); }

 private:
  void count() {
    if (auto meter = std::exchange(meter_, nullptr))
      meter->count(operation_, inner_.moved(), std::chrono::duration<double>(Clock::now() - start_).count());
  }

  Pending inner_;
  Collective operation_;
  Clock::time_point start_;
  std::shared_ptr<TrafficMeter> meter_;
};

class Metered final : public Decorated {
 public:
  Metered(std::shared_ptr<CommunicatorImpl> inner, std::shared_ptr<TrafficMeter> meter)
      : Decorated(std::move(inner)), meter_(std::move(meter)) {}

  Pending all_gather(ConstView shard, View whole) override {
    return timed(Collective::all_gather, [&] { return inner().all_gather(shard, whole); });
  }
  Pending reduce_scatter(ConstView whole, View shard) override {
    return timed(Collective::reduce_scatter, [&] { return inner().reduce_scatter(whole, shard); });
  }
  Pending all_reduce(View values) override {
    return timed(Collective::all_reduce, [&] { return inner().all_reduce(values); });
  }
  Pending all_to_all(ConstView input, View output) override {
    return timed(Collective::all_to_all, [&] { return inner().all_to_all(input, output); });
  }
  Pending broadcast(View values, int root) override {
    return timed(Collective::broadcast, [&] { return inner().broadcast(values, root); });
  }
  Pending barrier() override {
    return timed(Collective::barrier, [&] { return inner().barrier(); });
  }
  std::shared_ptr<CommunicatorImpl> split(int color, int key) override {
    return metered(inner().split(color, key), meter_);
  }

 private:
  template <class Call>
  Pending timed(Collective operation, Call call) {
    const auto start = Clock::now();
    auto timed = std::make_shared<Timed>(call(), operation, start, meter_);
    if (timed->done()) timed->wait();
    return Pending(std::move(timed));
  }

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

void TrafficMeter::count(Collective operation, const Moved& moved, double seconds) {
  const std::lock_guard lock(mutex_);
  traffic_[operation].add(moved);
  traffic_[operation].seconds += seconds;
}

std::shared_ptr<CommunicatorImpl> metered(std::shared_ptr<CommunicatorImpl> inner,
                                          std::shared_ptr<TrafficMeter> meter) {
  return std::make_shared<Metered>(std::move(inner), std::move(meter));
}

}  // namespace zero
