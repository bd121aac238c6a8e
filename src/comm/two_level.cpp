#include "comm/two_level.h"

#include <array>
#include <cstring>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/sum_tree.h"
#include "comm/backend.h"
#include "zero/error.h"

namespace zero {
namespace {

// An operation between hosts that reads and writes memory of its maker's: it is over before that goes, however it ends.
class Crossing {
 public:
  Crossing() = default;
  explicit Crossing(Pending operation) : operation_(std::move(operation)) {}
  Crossing(Crossing&& other) noexcept : operation_(std::exchange(other.operation_, {})) {}
  Crossing& operator=(Crossing&& other) noexcept {
    std::swap(operation_, other.operation_);
    return *this;
  }
  ~Crossing() {
    try {
      operation_.wait();
    } catch (const std::exception&) {  // of which another error has told
    }
  }
  Moved finish() { return completed(std::exchange(operation_, {})); }

 private:
  Pending operation_;
};

class TwoLevelCommunicator final : public CommunicatorImpl {
 public:
  TwoLevelCommunicator(Levels levels, const Hosts& hosts, std::int64_t staging)
      : levels_(std::move(levels)), hosts_(hosts), staging_(staging) {}

  int rank() const override { return levels_.all->rank(); }
  int size() const override { return levels_.all->size(); }
  Topology topology() const override { return {.ranks_per_host = hosts_.ranks_per_host, .two_levels = true}; }
  std::string_view backend() const override { return "hosts"; }
  std::chrono::milliseconds time_limit() const override { return levels_.all->time_limit(); }

  Pending run(const CollectiveCall& call) override;
  std::shared_ptr<CommunicatorImpl> split(int color, int key) override;
  void go_first() override {
    levels_.all->go_first();
    levels_.across->go_first();
  }

 private:
  void give_up(const std::string& why) override;
  Pending all_gather(ConstView shard, View whole);
  Pending reduce_scatter(const CollectiveCall& call);
  // What crosses between hosts, one piece beside the next.
  struct Piece {
    std::vector<char> there;  // what this rank gets from other hosts, or sends to them
    std::vector<char> sums;   // what comes of it, where that is several
  };
  struct CrossingSum;
  Piece& of_piece(std::int64_t number) { return pieces_[static_cast<std::size_t>(number % 2)]; }
  // By two levels.
  bool reduces(const CollectiveCall& call) const;
  // Elements of a slice that are on their way at a time, each rank having so many of them.
  std::int64_t step(std::int64_t element, std::int64_t parts = 1) const {
    return std::max<std::int64_t>(staging_ / size() / element / parts, 1);
  }
  template <class Action>
  void for_slices(Action action) const;
  bool inside_hosts(std::span<const SplitCall> calls) const;

  Levels levels_;
  Hosts hosts_;
  std::int64_t staging_;         // bytes
  std::vector<char> here_;       // what this rank sends to its host, or gets from it
  std::array<Piece, 2> pieces_;  // one of which may be crossing
};

template <class Action>
void TwoLevelCommunicator::for_slices(Action action) const {
  for (int host = 0; host < hosts_.hosts; ++host)
    for (int local = 0; local < hosts_.ranks_per_host; ++local) action(host, local);
}

View elements(std::vector<char>& bytes, std::int64_t count, Dtype dtype) {
  bytes.resize(static_cast<std::size_t>(std::max<std::int64_t>(count, 1) * size_of(dtype)));
  return {bytes.data(), count, dtype};
}

// The hint is for who reads that error itself.
std::string without_hint(const Error& error) {
  std::string text = error.what();
  if (!error.hint().empty()) text.resize(text.size() - (" (" + error.hint() + ")").size());
  return text;
}

Pending TwoLevelCommunicator::run(const CollectiveCall& call) {
  const bool gathers = call.collective == Collective::all_gather;
  if (!gathers && !reduces(call)) return levels_.all->run(call);
  require_cpu(call, *this);
  try {
    return gathers ? all_gather(call.in, call.out) : reduce_scatter(call);
  } catch (const CommError& error) {
    give_up(without_hint(error));
    throw;
  }
}

// Those who wait for this rank on one level cannot know what came of the other.
void TwoLevelCommunicator::give_up(const std::string& why) {
  levels_.inside->give_up(why);
  levels_.across->give_up(why);
}

bool TwoLevelCommunicator::reduces(const CollectiveCall& call) const {
  return call.collective == Collective::reduce_scatter &&
         GroupSum(call.leaves, size())
             .less_by_groups(hosts_.ranks_per_host, size_of(call.in.dtype), size_of(call.out.dtype));
}

// First the slices of this rank's number from every host, then everything from the host's other ranks: while the one
// goes on inside, the next piece crosses.
Pending TwoLevelCommunicator::all_gather(ConstView shard, View whole) {
  const std::int64_t element = size_of(shard.dtype);
  const std::int64_t length = step(element);
  const auto cross = [&](std::int64_t at) {
    const std::int64_t count = std::min(length, shard.count - at);
    const View mine = elements(of_piece(at / length).there, count * hosts_.hosts, shard.dtype);
    const ConstView part{bytes_of(shard.data) + at * element, count, shard.dtype};
    return std::pair(mine, Crossing(levels_.across->run({Collective::all_gather, part, mine})));
  };
  Moved moved;
  auto next = shard.count > 0 ? cross(0) : std::pair(View(), Crossing());
  for (std::int64_t at = 0; at < shard.count; at += length) {
    const std::int64_t count = std::min(length, shard.count - at);
    auto [mine, crossing] = std::exchange(next, {});
    if (at + length < shard.count) next = cross(at + length);
    moved += crossing.finish();
    const View all = elements(here_, count * size(), shard.dtype);
    moved += completed(levels_.inside->run({Collective::all_gather, mine, all}));
    for_slices([&](int host, int local) {
      const std::int64_t rank = host * hosts_.ranks_per_host + local;
      copy(bytes_of(whole.data) + (rank * shard.count + at) * element,
           bytes_of(all.data) + (local * hosts_.hosts + host) * count * element, count * element);
    });
  }
  return Pending(moved);
}

// What crosses of one piece of a sum, and where its results go.
struct TwoLevelCommunicator::CrossingSum {
  Crossing operation = {};
  View sums = {};
  std::int64_t at = 0, count = 0;
};

// The host's ranks add up, for each other host, the slice of this rank's number; then the hosts do, while the next
// piece is added up inside.
Pending TwoLevelCommunicator::reduce_scatter(const CollectiveCall& call) {
  const int here = hosts_.ranks_per_host;
  const GroupSum sum(call.leaves, size());
  const Leaves inside = sum.within(hosts_.host(rank()), here), across = sum.of_groups(here);
  const GroupSum of_host(inside, here), of_hosts(across, hosts_.hosts);
  const std::int64_t results = sum.sums();
  const std::int64_t element = size_of(call.in.dtype), kept = size_of(call.out.dtype);
  const std::int64_t slice = call.out.count / results, length = step(kept, std::max(sum.most(), of_hosts.most()));
  const int mine = sum.brought(rank());
  char* const out = bytes_of(call.out.data);
  Moved moved;
  const auto finish = [&](CrossingSum crossing) {
    moved += crossing.operation.finish();
    for (std::int64_t i = 0; i < results && crossing.count > 0; ++i)
      copy(out + (i * slice + crossing.at) * kept, bytes_of(crossing.sums.data) + i * crossing.count * kept,
           crossing.count * kept);
  };
  CrossingSum before;
  for (std::int64_t at = 0; at < slice; at += length) {
    const std::int64_t count = std::min(length, slice - at);
    Piece& piece = of_piece(at / length);
    const View all = elements(here_, of_host.most() * count * size(), call.in.dtype);
    const View sums = elements(piece.there, of_hosts.most() * count * hosts_.hosts, call.out.dtype);
    for (int part = 0; part < mine; ++part)
      for_slices([&](int host, int local) {
        const std::int64_t rank = host * here + local;
        copy(bytes_of(all.data) + ((part * here + local) * hosts_.hosts + host) * count * element,
             bytes_of(call.in.data) + ((part * size() + rank) * slice + at) * element, count * element);
      });
    const View of_this_host{sums.data, of_host.sums() * count * hosts_.hosts, sums.dtype};
    const View result =
        results == 1 ? View{out + at * kept, count, sums.dtype} : elements(piece.sums, results * count, sums.dtype);
    moved += completed(levels_.inside->run({Collective::reduce_scatter, all, of_this_host, -1, inside}));
    finish(std::exchange(before, {Crossing(levels_.across->run({Collective::reduce_scatter, sums, result, -1, across})),
                                  result, at, count}));
  }
  finish(std::move(before));
  return Pending(moved);
}

// Two levels again where everybody stays together in the same order; shared memory where no group leaves its host.
std::shared_ptr<CommunicatorImpl> TwoLevelCommunicator::split(int color, int key) {
  const std::vector<SplitCall> calls = gather_each<SplitCall>(*levels_.all, {color, key});
  const std::vector<int> members = split_group(calls, rank());
  bool same = static_cast<int>(members.size()) == size();
  for (int r = 0; same && r < size(); ++r) same = members[static_cast<std::size_t>(r)] == r;
  if (!same && inside_hosts(calls)) return levels_.inside->split(color, key);
  auto all = levels_.all->split(color, key);
  if (!same) return all;
  return two_level_communicator({std::move(all), levels_.inside->split(0, levels_.inside->rank()),
                                 levels_.across->split(0, levels_.across->rank())},
                                hosts_, staging_);
}

// Whether ranks of the same color share a host, all of them.
bool TwoLevelCommunicator::inside_hosts(std::span<const SplitCall> calls) const {
  std::map<std::int32_t, int> host_of;
  for (int r = 0; r < size(); ++r) {
    const auto [place, first] = host_of.emplace(calls[static_cast<std::size_t>(r)].color, hosts_.host(r));
    if (!first && place->second != hosts_.host(r)) return false;
  }
  return true;
}

}  // namespace

std::shared_ptr<CommunicatorImpl> two_level_communicator(Levels levels, const Hosts& hosts, std::int64_t staging) {
  return std::make_shared<TwoLevelCommunicator>(std::move(levels), hosts, staging);
}

}  // namespace zero
