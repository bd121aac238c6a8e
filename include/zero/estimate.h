// What a plan will cost, before it runs: bytes of every state on every rank and bytes on the wire of
// every collective, from the same table and layout that the engine executes. The figures are exact,
// not approximate (ZeRO, sections 5 and 7). No torch.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "zero/disk.h"
#include "zero/layout.h"
#include "zero/ledger.h"
#include "zero/optimizer.h"
#include "zero/plan.h"
#include "zero/tier_traffic.h"
#include "zero/traffic.h"

namespace zero {

// The order in which one micro-batch needs the units' values, by unit index.
struct Trace {
  std::vector<int> touches;  // forward, then backward; neighbours differ

  // Forward in the layout's order; backward in reverse, without units whose values it does not need.
  static Trace sequential(const Layout& layout);
  bool operator==(const Trace&) const = default;
};

struct StateBytes {
  std::int64_t parameter = 0;
  std::int64_t gradient = 0;   // in Plan::gradient_dtype
  std::int64_t optimizer = 0;  // moments, main weights of parameters that are stored narrower, or their remainders
  std::int64_t total() const { return parameter + gradient + optimizer; }
  bool operator==(const StateBytes&) const = default;
};

struct Estimate {
  // Per rank, on all tiers, each of the rank that has most.
  StateBytes state;
  // What a rank has at once, at most, as its own Ledger has it: `bytes` are as large as `peak`. Of a state on another
  // tier, its part that whole tensors or a share leave on the device is there, each of the rank that has most; what a
  // delayed update writes of parameters beside a model on a device is on the host. Flat gradients on their way to the
  // shards are those of the largest unit, and of units that wait for gradients around it, and the largest slice. On the
  // host, `update` is what states pass through beside a model on a device. A snapshot is this rank's part of a
  // checkpoint, where parts are even: `peak` alone, and in no total, since it is there while a save is under way.
  Ledger held;
  std::vector<std::int64_t> slices;  // by unit: the sum of its slice, which lives while that unit is reduced only
  std::int64_t update_traffic = 0;   // memory that a step's update reads and
                                     // writes, but for what is exchanged
  std::int64_t update_staying = 0;   // of these, of units whose state a share leaves on the device
  std::int64_t building = 0;         // what an engine holds of its device while it is built, at most: the states of
                                     // the units so far, and the values of the one that it takes over, whole
  Traffic wire;                      // per step, of the rank that Topologies are seen by (seconds stay zero)
  TierMoves moved;                   // between tiers, in a step: each figure that of the rank that moves most
  int gathers = 0;                   // times a unit is paged in per step

  StateBytes on(Tier tier) const;
  // Parameters gathered, gradients on their way to the shards, and what an update exchanges or passes through.
  std::int64_t buffers() const;
  std::int64_t largest_slice() const { return slices.empty() ? 0 : *std::ranges::max_element(slices); }
};

// Whether the ranks share a host's memory, or are on devices. Where they share it, a sharded parameter lives once,
// every rank reads the others' parts where they lie, and one barrier a step takes the place of the gathers'
// announcements. What is read counts as bytes on the wire, as if it had been sent: those in_place. Parameters on
// another tier than the device have no common memory, whatever is asked for.
enum class Memory : std::uint8_t { separate, common, device };

// How the ranks along each axis of a mesh are spread over hosts, as tensors see it and as announcements and votes do,
// which go by another way where tensors are on devices. By default all ranks are on one host.
class Topologies {
 public:
  Topologies() = default;
  Topologies(const Topology& all) : Topologies(all, all, Topology()) {}  // of a mesh of one shard group
  // Of hosts with as many ranks each, numbered host by host: `all` is what a rank sees of all ranks.
  Topologies(const Topology& all, const MeshShape& mesh);
  Topologies(const Topology& data, const Topology& shard, const Topology& replica)
      : tensors_{data, shard, replica}, words_(tensors_) {}
  Topologies(const Topologies& tensors, const Topologies& words) : tensors_(tensors.tensors_), words_(words.words_) {}

  // The same, as this rank of the data axis sees it: what it receives in sums to which ranks bring different amounts is
  // of that one, else of one to which most is brought.
  Topologies seen_by(int rank) const;
  int rank() const { return rank_; }
  const Topology& of_tensors(Axis axis) const { return tensors_.along(axis); }
  const Topology& of_words(Axis axis) const { return words_.along(axis); }

 private:
  struct Axes {
    Topology data, shard, replica;
    const Topology& along(Axis axis) const { return axis == Axis::data ? data : axis == Axis::shard ? shard : replica; }
  };
  Axes tensors_, words_;
  int rank_ = -1;
};

// `rules` by parameter, see parameter_rules(). The layout's mesh has the ranks; where parameters of one
// unit have different optimizers, ranks may hold different amounts, and the largest counts. By default the ranks
// share a host. `disk`: what buffers for states on disk follow from.
Estimate estimate(const Plan& plan, const Layout& layout, const std::vector<ParameterRule>& rules, const Trace& trace,
                  Memory memory = Memory::separate, const Topologies& topologies = {}, const DiskOptions& disk = {});
// One optimizer for all parameters, element by element; one over whole tensors needs their shapes, which rules have.
Estimate estimate(const Plan& plan, const Layout& layout, const Optimizer& optimizer, const Trace& trace,
                  Memory memory = Memory::separate, const Topologies& topologies = {});
inline Estimate estimate(const Plan& plan, const Layout& layout, const Optimizer& optimizer) {
  return estimate(plan, layout, optimizer, Trace::sequential(layout));
}

// Accumulated gradients that a rank holds at once, of the plan as it is on the mesh of as many data ranks: one, and
// with `reproducible` sums of which each is a node of the step's one tree, log2 A where A is a power of two.
int accumulation_levels(const Plan& plan, int ranks);

}  // namespace zero
