// The engine's collectives, one after the other on one thread, and the same on every rank.
//
// Before each operation the ranks announce what they are about to do (one all-gather of
// kAnnouncementBytes). When they all announce the same, it is done. When they differ because a rank
// uses other units than its peers (data-dependent control flow), the gathers are done first, those
// who did not ask serving their shards, and the others announce again: so a unit that only some
// ranks touch costs time, never a hang. When no gather is among them the programs have diverged, and
// every rank gets an error that lists what each was doing.
#pragma once

#include <array>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/worker.h"
#include "state/observer.h"
#include "zero/communicator.h"

namespace zero {

// As the unit of a gather that brings a unit as its shards hold it, where the wire would change it.
constexpr int exact_gather(int unit) {
  return -2 - unit;
}
constexpr bool is_exact_gather(int unit) {
  return unit <= -2;
}
constexpr int unit_of_gather(int unit) {
  return is_exact_gather(unit) ? -2 - unit : unit;
}

class Exchange {
 public:
  enum class Kind : std::int64_t { gather, reduce, publish, direct, vote, setup, read };

  struct Operation {
    Kind kind;
    int unit = -1;           // of the layout; -1: none
    std::int64_t count = 0;  // elements or bytes, to be equal on all ranks
    std::function<void(const Communicator&)> run;
  };

  // `setup` joins the same ranks, for operations that are not part of a step (they are metered apart).
  // `serve` gathers a unit (or exact_gather(unit)) for others without keeping it; called on the exchange's thread.
  Exchange(Communicator communicator, Communicator setup, std::function<void(const Communicator&, int unit)> serve,
           std::function<std::string(int unit)> unit_name);
  ~Exchange();

  // Queues the operation; on one rank runs it at once. After a failure every operation fails alike.
  Pending submit(Operation operation);
  void run(Operation operation) { submit(std::move(operation)).wait(); }

  // Hears of the operations that are submitted from now on.
  void observe(std::weak_ptr<EngineObserver> observer) { observer_ = std::move(observer); }

  int rank() const { return communicator_.rank(); }
  int size() const { return communicator_.size(); }

 private:
  using Announcement = std::array<std::int64_t, 4>;  // kind, unit, count, sequence number

  const Communicator& channel(Kind kind) const { return kind < Kind::setup ? communicator_ : setup_; }
  void carry_out(const Operation& operation);
  std::vector<Announcement> announce(const Operation& operation);
  bool serve_gathers(const Operation& mine, const std::vector<Announcement>& table);
  std::string describe(const std::vector<Announcement>& table) const;

  Communicator communicator_;
  Communicator setup_;
  std::function<void(const Communicator&, int)> serve_;
  std::function<std::string(int)> unit_name_;
  std::weak_ptr<EngineObserver> observer_;
  std::int64_t sequence_ = 0;
  std::exception_ptr failure_;      // the first: after it the peers can no longer be trusted to be in step
  std::unique_ptr<Worker> worker_;  // last: joined before the rest goes
};

}  // namespace zero
