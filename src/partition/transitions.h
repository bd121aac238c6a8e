// Between which forms the state of each unit goes within a step, and when: the one reading of the plan's table. The
// engine carries the transitions out, the estimate sums them up, the theory writes them down (ZeRO, section 5 and 7:
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

enum class Moment : std::uint8_t {
  use,       // operators of a micro-batch read the unit, which is not there
  gradient,  // its gradient of a micro-batch is complete
  sum,       // that of the step's last micro-batch is, and with it the sum of all
  update,    // this rank has updated what it updates of the unit
};

struct Form {
  Placement placement = Placement::replicated;
  Dtype dtype = Dtype::f32;
  Tier tier = Tier::device;
  Axis over = Axis::data;  // of what is sharded
  bool operator==(const Form&) const = default;
};

// One collective along one axis of the mesh, in which every rank sends `bytes` to each other one of its group; `sum`
// where it has been added up on the way.
struct Hop {
  Collective collective = Collective::all_gather;
  Axis axis = Axis::shard;
  std::int64_t bytes = 0;
  std::int64_t sum = bytes;
  bool operator==(const Hop&) const = default;
};
// Of what lies in slices over `over` and is wanted by all ranks, or by each shard group's ranks as slices over `shard`;
// `bytes` are those of a slice over `data`. Across first, so that slices land in order.
std::vector<Hop> gather_hops(const MeshShape& mesh, Axis over, bool to_all, std::int64_t bytes);
// Of `count` elements over which all ranks add up, each keeping its slice over `data`: inside first, then across, in
// the accumulation dtype.
std::vector<Hop> reduce_hops(const MeshShape& mesh, Dtype dtype, std::int64_t count);

struct Transition {
  Moment when = Moment::use;
  int unit = 0;  // of the layout
  State state = State::parameter;
  Form from, to;
  Wire wire = Wire::native;
  bool joined = false;  // one operation with the transition before it

  // `layout` is the unit's.
  std::vector<Hop> hops(const UnitLayout& layout) const;
  bool operator==(const Transition&) const = default;
};

// In the order of moments, unit by unit; those of `use` and `gradient` happen in every micro-batch. Of a plan as it is
// on the layout's mesh (Plan::on): on one rank there are none but from tier to tier.
std::vector<Transition> transitions(const Plan& plan, const Layout& layout);

// The columns of a row in words, and two of them: where a state is between micro-batches, and at rest.
std::string describe(const Row& row);
std::pair<std::string, std::string> places(const Row& row);

// What becomes of the states of a plan's trainable units, all alike. The plan is as it is on its mesh.
struct Movement {
  bool pages = false;           // parameters, for their use: they are not whole where they are computed with
  bool brings = false;          // them from another tier than the device's
  bool gathers = false;         // them from other ranks
  bool reduces_each = false;    // gradients, in each micro-batch; else their sum, once
  bool gathers_sum = false;     // of gradients, of which ranks hold more than their slice over all
  bool updates_slices = false;  // each rank its own; else every rank all
  bool publishes = false;       // parameters, of which ranks hold more than they update
  Axis within = Axis::data;     // along which parameters are gathered for their use
};
Movement movement(const Plan& plan);

// What a rank has of a unit's flat array.
struct Held : Slice {
  std::optional<Axis> over = {};  // of which it is a slice; none: it is all
};
// What `rank` holds of a state when nothing is under way, and between the micro-batches of a step.
Held held_at_rest(const Plan& plan, State state, const UnitLayout& unit, int rank);
Held held_between(const Plan& plan, State state, const UnitLayout& unit, int rank);
// Of which it is a slice, between micro-batches; none: it is all.
std::optional<Axis> divided_between(const Plan& plan, State state);
// Where a sum over all ranks ends before what `held` wants of it is sent: in what all of the shard group hold a slice
// of, where it goes on across.
Slice sum_room(const UnitLayout& unit, int rank);

}  // namespace zero
