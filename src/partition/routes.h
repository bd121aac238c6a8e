// Which part of each unit's states a rank has, and by which collectives they get from one form to another: the one
// reading of the plan's table. What runs, the estimate and the theory go by the same routes (ZeRO, section 5 and 7:
// which collectives a stage takes follows from what it partitions). No torch.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "zero/communicator.h"
#include "zero/layout.h"
#include "zero/plan.h"

namespace zero {

// What a rank has of a unit's flat array.
struct Shard : Slice {
  std::optional<Axis> over = {};  // of which it is a slice; none: it is all
};

// One collective along one axis of the mesh: this rank has the elements `from` of a unit, and then `to`.
struct Hop {
  Collective collective = Collective::all_gather;
  Axis axis = Axis::shard;
  Slice from, to;
  Dtype sent = Dtype::f32;
  Dtype kept = sent;   // another one than it was sent in where it has been added up
  Leaves leaves = {};  // of the ranks along the axis, in a sum
  // In which a sum's addends are sent, each rank's own excepted: they are decoded to `kept`, and added up there.
  Wire codec = Wire::native;

  int members() const;
  // What brings it.
  Collective carried_by() const { return codec == Wire::native ? collective : Collective::all_to_all; }
  // Sums, each of all elements: that a rank brings, or has room for where others bring more; and that come of them.
  int brought() const;
  int sums() const;
  bool operator==(const Hop&) const = default;
};

// Of one unit and one rank. MeshGroups::carry_out() goes along it.
struct Route {
  Slice from, to;
  Wire codec = Wire::native;  // from the first hop to the last, of a gather
  std::vector<Hop> hops;      // none: the rank has `to` already

  // The elements of which there is to be memory, where every hop ends in its part; and how many numbers, where several
  // sums of them are on their way, one behind the other.
  Slice room() const;
  bool several() const;
  // Whether a sum of it crosses in codes.
  bool coded() const;
  std::int64_t numbers() const;
  // Of them, those for what a hop ends with, where several are on their way: as many as a rank brings to the next.
  std::int64_t numbers_behind(std::size_t hop) const;
  // What every rank of a hop's group sends to each other one, of each sum, in a codec of all; and that where ranks have
  // added it up.
  std::int64_t bytes(const Hop& hop) const;
  static std::int64_t sum_bytes(const Hop& hop);
  bool operator==(const Route&) const = default;
};

enum class When : std::uint8_t {
  use,       // operators of a micro-batch read the unit, which is not there
  keep,      // the same for the first time since the unit was updated
  gradient,  // its gradient of a micro-batch is complete
  sum,       // that of the step's last micro-batch is, and with it the sum of all
  update,    // this rank has updated what it updates of the unit
};

// What happens to a state in a step, or, of `use` and `gradient`, in each of its micro-batches.
struct Transition {
  When when = When::use;
  State state = State::parameter;
  Route route;
  bool joined = false;  // one operation with the transition before it
  bool operator==(const Transition&) const = default;
};

// Of a plan as it is on its mesh (Plan::on), which is to live as long, and of one rank of it.
class Routes {
 public:
  explicit Routes(const Plan& plan, int rank = 0) : plan_(&plan), rank_(rank) {}

  const Plan& plan() const { return *plan_; }
  int rank() const { return rank_; }
  // What is held of a state when nothing is under way, and between the micro-batches of a step.
  Shard rest(State state, const UnitLayout& unit) const;
  Shard between(State state, const UnitLayout& unit) const;

  bool keeps() const;  // more of parameters between micro-batches than at rest
  bool keeps_whole() const;
  // Whole, once for a shard group that has but a part of them at rest, where it has common memory.
  bool keeps_for_group(const MeshShape& mesh) const;
  bool brings() const;   // parameters, from another tier than the device's
  bool gathers() const;  // parameters, from other ranks
  bool pages() const { return brings() || gathers(); }
  Axis within() const;          // along which they are gathered
  Wire codec() const;           // in which, units of fp64 excepted
  bool reduces_each() const;    // gradients of each micro-batch; else their sum, once
  bool gathers_sum() const;     // of gradients, of which ranks hold more than their slice over all
  bool updates_slices() const;  // each rank its own; else every rank all
  bool publishes() const;       // parameters, of which ranks hold more than they update

  // Parameters, whole for an operator that reads them; `exactly` in no codec, and from where they are at rest. Where
  // more of them is kept, `use` is the way from there, and `keep` that to there, else none.
  Route use(const UnitLayout& unit, bool exactly = false) const;
  Route keep(const UnitLayout& unit) const;
  // The part of `keep` that comes from other shard groups, where ranks of a group have what is kept whole in common.
  Route keep_in_common(const UnitLayout& unit) const;
  // Each rank's gradient of a micro-batch, or of all of them, added up: its slice over all ranks, coded where it
  // crosses shard groups and the plan says so. And that, to where more of it is held.
  Route reduce(const UnitLayout& unit, int micro = 0) const;
  Route sum(const UnitLayout& unit) const;
  // Memory for what crosses of it in codes; 0 where nothing does.
  std::int64_t coded_sum_bytes(const UnitLayout& unit) const;
  // Which elements this rank sends in codes to each rank across, and, but for itself, where in its memory of a unit's
  // errors theirs lie, as ErrorBlocks: none where the plan feeds none back. And the bytes of that memory, of a
  // unit that is trained.
  struct Errors {
    Slice of;
    std::optional<std::int64_t> at;
  };
  std::vector<Errors> errors(const UnitLayout& unit) const;
  std::int64_t error_bytes(const UnitLayout& unit) const;
  // Updated parameters, to the ranks that have them.
  Route publish(const UnitLayout& unit) const;
  // What each rank updates, in another dtype, to all of them; and the sum of what owners of whole tensors have for it.
  Route updated(const UnitLayout& unit, Dtype dtype) const;
  Route steps(const UnitLayout& unit, Dtype dtype) const;
  Route brought_steps(const UnitLayout& unit) const;
  // All that the plan itself asks for, in this order. On one rank there is none but from tier to tier.
  std::vector<Transition> of(const UnitLayout& unit) const;

  // Of a gradient that is held in `held`, on another tier than the device's if `offloaded`: in which dtype it travels;
  // whether from a flat array of its own, in which all that `reduce` sends of it fits.
  Dtype sent(const UnitLayout& unit, Dtype held) const;
  bool flat(const UnitLayout& unit, const Route& reduce, Dtype held, bool offloaded) const;
  // Whether the sum of its slice is made apart from where it is held, for it does not fit there, or is `added` to it.
  bool apart(const UnitLayout& unit, const Route& reduce, Dtype held, bool offloaded, bool added) const;

 private:
  const Plan* plan_;
  int rank_;
};

// Every rank's words, as many on each, to all ranks along `data` or `shard`: in the order of slices.
Route table_route(const MeshShape& mesh, Axis over, std::int64_t words, int rank);

// The columns of a row in words, and two of them: where a state is between micro-batches, and at rest.
std::string describe(const Row& row);
std::pair<std::string, std::string> places(const Row& row);
// Of which a state is a slice, between micro-batches; none: it is all.
std::optional<Axis> divided_between(const Plan& plan, State state);
// What a plan asks for between shard groups and cannot have, in words, where one group spans hosts of so many ranks (0:
// one host); else empty.
std::string missing_groups(const Plan& plan, const MeshShape& mesh, int ranks_per_host);

}  // namespace zero
