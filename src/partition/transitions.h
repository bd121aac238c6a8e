// Between which forms the state of each unit goes within a step, and when: the one reading of the plan's table. The
// engine carries the transitions out, the estimate sums them up, the theory writes them down (ZeRO, section 5 and 7:
// which collectives a stage takes follows from what it partitions). No torch.
#pragma once

#include <cstdint>
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
  bool operator==(const Form&) const = default;
};

struct Transition {
  Moment when = Moment::use;
  int unit = 0;  // of the layout
  State state = State::parameter;
  Form from, to;
  Wire wire = Wire::native;
  bool joined = false;  // one operation with the transition before it

  Collective collective() const;
  // That each rank sends each other one; `layout` is the unit's.
  std::int64_t bytes(const UnitLayout& layout) const;
  bool operator==(const Transition&) const = default;
};

// In the order of moments, unit by unit; those of `use` and `gradient` happen in every micro-batch. Of a plan as it is
// on the layout's ranks (Plan::on): on one rank there are none.
std::vector<Transition> transitions(const Plan& plan, const Layout& layout);

// The columns of a row in words, and two of them: where a state is between micro-batches, and at rest.
std::string describe(const Row& row);
std::pair<std::string, std::string> places(const Row& row);

// What becomes of the states of a plan's trainable units, all alike.
struct Movement {
  bool gathers = false;         // parameters, for their use
  bool reduces_each = false;    // gradients, in each micro-batch; else their sum, once
  bool gathers_sum = false;     // of gradients, which all ranks hold
  bool updates_slices = false;  // each rank its own; else every rank all
  bool publishes = false;       // parameters, after such an update
};
Movement movement(const Plan& plan);

// Elements [begin, begin + count) of a unit's flat array.
struct Held {
  std::int64_t begin = 0;
  std::int64_t count = 0;
  bool slice = false;  // this rank's, not all
};
// What `rank` holds of a state when nothing is under way, and between the micro-batches of a step.
Held held_at_rest(const Plan& plan, State state, const UnitLayout& unit, int rank);
Held held_between(const Plan& plan, State state, const UnitLayout& unit, int rank);
// Whether that is a slice, between micro-batches.
bool divided_between(const Plan& plan, State state);

}  // namespace zero
