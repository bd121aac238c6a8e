// Operations on their way beside each other.
#include "units/exchange.h"

#include <torch/torch.h>

#include <atomic>
#include <future>

#include "comm/metered.h"
#include "device/torch/devices.h"
#include "harness.h"
#include "zero/error.h"

namespace zero::test::exchange_test {

using Kind = Exchange::Kind;

// By which a test ends that would hang.
constexpr std::chrono::minutes kNoHang{2};

// Of two ranks, gathers beside reductions.
class Both {
 public:
  explicit Both(const World& world) : groups_(world.communicator().split(0, world.rank()), MeshShape(world.size())) {
    const Exchange::Lanes lanes{groups_, groups_, std::make_shared<TrafficMeter>()};
    exchange_.emplace(device_at(device_of_rank()),
                      Exchange::Channels{lanes, lanes, groups_.once_more(), Axis::data, groups_.once_more()},
                      [](int unit) { return std::to_string(unit); });
    exchange_->serve_by([](const MeshGroups&, int, Exchange::Variant) {});
  }
  Pending submit(Kind kind, std::function<void()> run) {
    return exchange_->submit({.kind = kind, .unit = 1, .run = [run = std::move(run)](const MeshGroups&) { run(); }});
  }

 private:
  MeshGroups groups_;
  std::optional<Exchange> exchange_;
};

void on_two_ranks(const std::function<void(Both&, int rank)>& test) {
  run_ranks(2, [&](const World& world) {
    Both both(world);
    test(both, world.rank());
  });
}

TEST(ExchangeOfSeveral, GathersPassAReductionThatIsOnItsWay) {
  on_two_ranks([](Both& both, int) {
    std::promise<void> gathered;
    auto first = both.submit(Kind::reduce, [there = gathered.get_future().share()] {
      if (there.wait_for(kNoHang) != std::future_status::ready) throw CommError("no gather has passed");
    });
    both.submit(Kind::gather, [] {}).wait();
    gathered.set_value();
    first.wait();
  });
}

TEST(ExchangeOfSeveral, EachKindHasAnOrderAndTheRestComesBehindAll) {
  on_two_ranks([](Both& both, int) {
    std::atomic<int> gathers = 0, reductions = 0;
    std::vector<int> seen;
    std::vector<Pending> all;
    const auto note = [&](std::atomic<int>& many, int number) {
      return [&many, number] {
        if (many++ != number) throw CommError("out of order");
      };
    };
    for (int i = 0; i < 50; ++i) {
      all.push_back(both.submit(Kind::reduce, note(reductions, i)));
      all.push_back(both.submit(i % 2 == 0 ? Kind::gather : Kind::publish, note(gathers, i)));
      if (i % 10 == 9) all.push_back(both.submit(Kind::vote, [&] { seen.push_back(gathers + reductions); }));
    }
    for (Pending& each : all) each.wait();
    EXPECT_EQ(seen, (std::vector<int>{20, 40, 60, 80, 100}));
  });
}

// Behind one that fails, whatever was agreed on is carried out by the other thread, where peers may wait for it.
TEST(ExchangeOfSeveral, WhatWasAgreedOnGoesOnBesideAFailure) {
  on_two_ranks([](Both& both, int rank) {
    std::promise<void> failed;
    std::atomic<bool> gathered = false;
    const auto there = failed.get_future().share();
    auto first = both.submit(Kind::gather, [there] { there.wait_for(kNoHang); });
    auto second = both.submit(Kind::gather, [&gathered] { gathered = true; });
    auto reduction = both.submit(Kind::reduce, [rank] { throw StateError("of rank " + std::to_string(rank)); });
    EXPECT_NE(thrown_by([&] { reduction.wait(); }), "");
    failed.set_value();
    EXPECT_EQ(thrown_by([&] { first.wait(); }), "");
    EXPECT_EQ(thrown_by([&] { second.wait(); }), "");
    EXPECT_TRUE(gathered);
  });
}

// What was not agreed on fails, on every rank.
TEST(ExchangeOfSeveral, AFailureIsThatOfAllThatComesLater) {
  on_two_ranks([](Both& both, int rank) {
    auto failed = both.submit(Kind::reduce, [rank] { throw StateError("of rank " + std::to_string(rank)); });
    EXPECT_EQ(thrown_by([&] { failed.wait(); }), "of rank " + std::to_string(rank));
    for (const Kind kind : {Kind::gather, Kind::vote, Kind::reduce})
      EXPECT_EQ(thrown_by([&] { both.submit(kind, [] { ADD_FAILURE() << "was run"; }).wait(); }),
                "of rank " + std::to_string(rank));
  });
}

}  // namespace zero::test::exchange_test
