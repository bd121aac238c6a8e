// The engine's collectives, agreed on one after the other on one thread, and the same on every rank.
//
// Before each operation the ranks announce what they are about to do (one all-gather of
// kAnnouncementBytes; where parameters are gathered within shard groups, one in each group, and for what concerns all
// ranks another one across). When they all announce the same, it is done. When they differ because a rank
// uses other units than its peers (data-dependent control flow), the gathers are done first, those
// who did not ask serving their shards, and the others announce again: so a unit that only some
// ranks touch costs time, never a hang. When no gather is among them the programs have diverged, and
// every rank gets an error that lists what each was doing.
//
// A rank that has had nothing to exchange for a while says that it rests, and so comes to the others' announcements: it
// then serves the gathers of their evaluations, whatever its program is about, as long as its shards do not change. So
// ranks evaluate as much as each likes.
//
// What was agreed on is carried out there and then. Where gathers have groups of their own, they and publications go
// on one more thread, and reductions on another, beside each other and beside what is agreed on next; everything else
// comes behind all of them.
//
// On a device the operations are queued on streams of their own, beside what the engine computes: one that is
// submitted comes behind what the submitting thread had queued, and what a thread queues that has waited for it comes
// behind it.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "backwards/observer.h"
#include "base/lifetimes.h"
#include "base/worker.h"
#include "comm/mesh_groups.h"
#include "device/device.h"
#include "units/carrier.h"

namespace zero {

class Exchange {
 public:
  // Those before `setup` belong to steps; the last two are announced where there is no operation: a rank has nothing to
  // exchange, or nothing but that it serves others.
  enum class Kind : std::uint8_t {
    gather,
    reduce,
    publish,
    whole_tensor,
    vote,
    setup,
    order,
    save,
    load,
    read,
    emptied,
    rest,
    serve
  };
  // Of a gather: as the plan's wire brings it, or as the shards hold it, where that is something else.
  enum class Variant : std::uint8_t { as_planned, exact };
  // What ranks say to each other lies in the host's memory; data wherever the engine computes.
  enum class Lane : std::uint8_t { control, data };

  struct Operation {
    Kind kind;
    int unit = -1;           // of the layout; -1: none
    std::int64_t count = 0;  // elements or bytes, to be equal on all ranks
    std::function<void(const MeshGroups&)> run;
    Variant variant = Variant::as_planned;
    Axis axis = Axis::data;  // whose ranks carry it out
    Lane lane = Lane::data;
    bool alone = false;         // a gather that peers may not come to, who evaluate less or have the unit
    std::uint32_t emptied = 0;  // of a reduction or a vote; see Exchange::emptied()
  };

  // How the ranks are joined on each lane, and who counts announcements.
  struct Lanes {
    MeshGroups control, data;
    std::shared_ptr<TrafficMeter> meter;
  };
  // For operations of steps, and for others, which are metered apart; the control lane without a meter, on which
  // announcements go; along which axis (shard or data) parameters are gathered; and groups for gathers of steps,
  // metered, where these go beside reductions: then they, and announcements, have groups of their own.
  struct Channels {
    Lanes steps;
    Lanes others;
    MeshGroups announcing;
    Axis gathers = Axis::data;
    std::optional<MeshGroups> gathering = {};

    const MeshGroups& of_gathers() const { return gathering ? *gathering : steps.data; }
  };
  // Gathers a unit for others without keeping it; called on the exchange's thread.
  using Serve = std::function<void(const MeshGroups&, int unit, Variant variant)>;

  // `device`: on which the engine computes.
  Exchange(Device& device, Channels channels, std::function<std::string(int unit)> unit_name);
  ~Exchange() { stop(); }
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  // How units are served; before the first gather.
  void serve_by(Serve serve) { serve_ = std::move(serve); }
  // What nobody waited for is done, and nothing is served or may be submitted from here on.
  void stop() noexcept;

  // Queues the operation; on one rank runs it at once. After a failure every operation fails alike. Throws StateError
  // in a process that was forked.
  Pending submit(Operation operation);
  void run(Operation operation) { submit(std::move(operation)).wait(); }

  // What all ranks tell each other, in the host's memory: `talk` runs on the exchange's thread.
  void confer(Kind kind, const std::function<void(const Communicator& all)>& talk);
  // Every rank's `words`, as many on each: by rank of the mesh's `axis`, in the order of slices.
  std::vector<std::int64_t> table(Kind kind, std::span<const std::int64_t> words, Axis axis = Axis::data,
                                  int unit = -1);
  // `root`'s values, to all ranks.
  void broadcast(Kind kind, int unit, View values, int root);
  // Done when the ranks that have the shards of a unit between them have come to it, and what they wrote is visible.
  Pending barrier(Kind kind, int unit = -1);
  // These ranks announce that they have come here; nothing is carried out.
  void meet(int unit = -1);

  // The program has emptied gradients: what tells which from others. Reductions and votes are the same on all ranks
  // only where all that was emptied before them is.
  void emptied(const std::string& gradients);
  // From here on the ranks serve each other's evaluations once they have had nothing to exchange for a hundredth of
  // the time limit.
  void stand_by();
  // From here on ranks may come to the engines of this thread in different orders, to gather for themselves, and so
  // have units there that others gather: while it waits for one engine, what others are asked for is served at once.
  static void in_any_order();
  // While one lives, the thread that made it waits for `exchange`.
  class OthersServe {
   public:
    explicit OthersServe(const Exchange& exchange);
    ~OthersServe();
    OthersServe(const OthersServe&) = delete;
    OthersServe& operator=(const OthersServe&) = delete;

   private:
    const Exchange& exchange_;
  };
  // No more, on any rank. Collective where they did.
  void end_standing_by();
  // While one lives this rank's shards may change, and what it takes no part in itself it does not serve. May be
  // nested; of the thread that submits.
  class Changing {
   public:
    explicit Changing(Exchange& exchange);
    ~Changing();
    Changing(const Changing&) = delete;
    Changing& operator=(const Changing&) = delete;

   private:
    Exchange& exchange_;
    std::unique_lock<std::recursive_mutex> lock_;
  };

  // Whether this rank's shards are those of the step before, while its peers' may be newer: then it serves nothing
  // unasked. Inside Changing.
  void be_behind(bool behind) { behind_ = behind; }

  // Hears of the operations that are submitted from now on.
  void observe(std::weak_ptr<EngineObserver> observer) { observer_ = std::move(observer); }

  int rank() const { return channels_.steps.data.rank(); }
  int size() const { return channels_.steps.data.size(); }
  bool of_this_process() const { return origin_.here(); }
  Axis gathers_along() const { return channels_.gathers; }
  const MeshShape& mesh() const { return channels_.steps.data.mesh(); }

 private:
  // Kind, variant, axis, lane and whether alone, a byte each, and what was emptied; unit, count, sequence number.
  using Announcement = std::array<std::int64_t, 4>;
  using Table = std::vector<Announcement>;
  using Clock = std::chrono::steady_clock;
  // An operation on its way, what hears of it, and what it is carried out in.
  struct Course {
    Operation operation;
    std::weak_ptr<EngineObserver> observer;
    std::shared_ptr<SideStream::Work> work;
  };
  // The first: after it the peers can no longer be trusted to be in step. Thread-safe.
  class Failure {
   public:
    bool any() const;
    void note(std::exception_ptr what);
    void rethrow() const;  // where there is one

   private:
    mutable std::mutex mutex_;
    std::exception_ptr first_;
  };

  const Lanes& lanes(Kind kind) const { return kind < Kind::setup ? channels_.steps : channels_.others; }
  const MeshGroups& channel(const Operation& operation) const;
  void carry_out(Course course);
  Pending carry(Carrier& by, Course course);
  template <class Action>
  void attempt(const Action& action);
  bool agree(const Operation& operation, const std::weak_ptr<EngineObserver>& told);
  bool serve(const Operation& operation, const Table& table, const std::weak_ptr<EngineObserver>& told);
  Table announce(const Operation& operation, Axis axis);
  Table announce_none(Kind kind);
  Table announce(Announcement mine, Axis axis, TrafficMeter* meter);
  bool serve_gathers(const Operation* mine, const Table& table);
  bool rest(const Worker& worker);
  std::chrono::milliseconds time_limit() const;
  void require_peers(const Operation& operation, const Table& table, Clock::time_point begin) const;
  std::string wish(const Announcement& announcement) const;
  int peer(std::size_t place, Axis axis) const;
  [[noreturn]] void diverged(const Table& table, Axis axis) const;

  struct StandingByHere;
  struct StandingBy {
    std::atomic<bool> on = false;
    std::shared_ptr<StandingByHere> here = {};  // of the thread that began to
  };
  static void others_serve(const Exchange& but, bool on);

  Channels channels_;
  Serve serve_;
  std::function<std::string(int)> unit_name_;
  std::weak_ptr<EngineObserver> observer_;
  std::int64_t sequence_ = 0;
  std::uint32_t emptied_ = 0;
  Failure failure_;
  ProcessOfOrigin origin_;
  StandingBy standing_;
  std::recursive_mutex shards_;                // held while they change, or are served unasked
  bool behind_ = false;                        // with them
  std::shared_ptr<SideStream::Work> at_rest_;  // behind what changed them last; null where nothing is served so
  Carriers carriers_;
  std::unique_ptr<Carrier> agreeing_;  // last: joined before the rest goes
};

}  // namespace zero
