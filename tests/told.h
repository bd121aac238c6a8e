// A communicator that tells of the calls by which ranks find out what they ask for.
#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "zero/communicator.h"

namespace zero::test {

class Told final : public CommunicatorImpl {
 public:
  Told(std::shared_ptr<CommunicatorImpl> inner, std::function<void(Collective)> tell)
      : inner_(std::move(inner)), tell_(std::move(tell)) {}

  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  std::string_view backend() const override { return inner_->backend(); }
  std::chrono::milliseconds time_limit() const override { return inner_->time_limit(); }
  Pending all_gather(ConstView shard, View whole) override {
    tell_(Collective::all_gather);
    return inner_->all_gather(shard, whole);
  }
  Pending broadcast(View values, int root) override {
    tell_(Collective::broadcast);
    return inner_->broadcast(values, root);
  }
  Pending reduce_scatter(ConstView whole, View shard) override { return inner_->reduce_scatter(whole, shard); }
  Pending all_reduce(View values) override { return inner_->all_reduce(values); }
  Pending all_to_all(ConstView input, View output) override { return inner_->all_to_all(input, output); }
  Pending barrier() override { return inner_->barrier(); }
  std::shared_ptr<CommunicatorImpl> split(int color, int key) override { return inner_->split(color, key); }

 private:
  std::shared_ptr<CommunicatorImpl> inner_;
  std::function<void(Collective)> tell_;
};

}  // namespace zero::test
