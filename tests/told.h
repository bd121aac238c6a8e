// A communicator that tells of the calls by which ranks find out what they ask for.
#pragma once

#include <algorithm>
#include <functional>
#include <iterator>
#include <memory>
#include <utility>

#include "comm/decorators.h"

namespace zero::test {

class Told final : public Decorated {
 public:
  Told(std::shared_ptr<CommunicatorImpl> inner, std::function<void(Collective)> tell)
      : Decorated(std::move(inner)), tell_(std::move(tell)) {}

  Pending run(const CollectiveCall& call) override {
    const Collective asks[] = {Collective::all_gather, Collective::broadcast};
    if (std::ranges::find(asks, call.collective) != std::end(asks)) tell_(call.collective);
    return inner().run(call);
  }
  std::shared_ptr<CommunicatorImpl> split(int color, int key) override { return inner().split(color, key); }

 private:
  std::function<void(Collective)> tell_;
};

}  // namespace zero::test
