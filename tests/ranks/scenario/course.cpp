#include "ranks/scenario/course.h"

#include <utility>

#include "partition/accumulation_order.h"
#include "ranks/scenario/network.h"
#include "ranks/scenario/settings.h"

namespace zero::test::scenario {

// Both losses of one graph by loss.backward, one after the other, are two, too.
int backwards_of(const Event& event) {
  return event.which == 3 || (event.which == 4 && event.how != 2) ? 2 : 1;
}

// A tree of sums has a place for as many as are planned.
bool Course::permits_backwards(int count) const {
  const int planned = accumulate_of(*scenario_);
  const bool tree = scenario_->settings[Setting::reproducible] != 0 && planned > 1;
  return micro_ + count <= planned + (tree ? 0 : 3);
}

bool Course::permits(const Event& event) const {
  const unsigned all = (1U << ranks_of(*scenario_)) - 1;
  const bool sees = !delays(*scenario_) || !in_step();  // parameters of the latest step
  switch (event.act) {
    case Act::backward: return permits_backwards(backwards_of(event)) && (event.some & all) != all;
    case Act::forward: return event.how == 0 || !draws(*scenario_) || (event.some & all) == 0;
    case Act::zero_grad: return stepped_ == 0 || stepped_ == micro_;
    case Act::evaluate: return !delays(*scenario_) || (!forwarded_ && (event.some & all) == 0);
    case Act::freeze:
    case Act::thaw: return !in_step();
    case Act::read: return sees || (event.how == 1 && !forwarded_);
    case Act::write: return sees;
    case Act::gradient:
    case Act::clamp:
      for (const auto& plan : scenario_->plans)
        if (plan[PlanChoice::gradient] != 0) return false;
      return micro_ >= accumulate_of(*scenario_);
    case Act::load: return micro_ == 0 && sees && saved_;
    case Act::save:
    case Act::move:
    case Act::release: return micro_ == 0 && sees;
    default: return true;
  }
}

void Course::follow(const Event& event) {
  switch (event.act) {
    case Act::backward:
      micro_ += backwards_of(event);
      forwarded_ = false;
      told_.reset();
      break;
    case Act::forward:
      forwarded_ = true;
      if (event.how == 0 || draws(*scenario_)) told_ = slot(0);
      break;
    case Act::zero_grad:
      if (event.part != 0 || !empties() || micro_ == 0) break;
      micro_ = 0;
      first_slot_ = std::exchange(told_, std::nullopt).value_or(0);
      break;
    case Act::discard: begin_step(); break;
    case Act::step:
      if (micro_ < accumulate_of(*scenario_)) {
        stepped_ = micro_;
        break;
      }
      first_ += std::int64_t{accumulate_of(*scenario_)} * ranks_of(*scenario_);
      begin_step();
      break;
    case Act::save: saved_ = first_; break;
    case Act::load:
      first_ = *saved_;
      begin_step();
      break;
    case Act::move:
    case Act::release:
      plan_ = event.which % static_cast<int>(scenario_->plans.size());
      if (event.act == Act::release) first_ = 0;
      begin_step();
      break;
    default: break;
  }
}

void Course::begin_step() {
  ++window_;
  micro_ = stepped_ = first_slot_ = 0;
  forwarded_ = false;
  told_.reset();
}

// Each of a step's micro-batches has its number once, whatever was emptied.
int Course::slot(int ahead) const {
  return (first_slot_ + micro_ + ahead) % accumulate_of(*scenario_);
}

std::int64_t Course::micro_batch(int rank, int ahead) const {
  const MeshShape mesh = mesh_of(*scenario_, plan_);
  return first_ + micro_batch_index(plan_of(*scenario_, plan_).on(mesh), mesh.size(), rank, slot(ahead));
}

bool alike_in_any_order(const Scenario& scenario) {
  if (has_ranks_of_their_own(scenario)) return false;
  Course course(scenario);
  int which = -1;  // of the step's losses; -1: there is none yet
  for (const Event& event : scenario.events) {
    if (!course.in_step()) which = -1;
    switch (event.act) {
      case Act::backward:
        if (event.some != 0 || event.infinite != 0 || backwards_of(event) > 1) return false;
        if (which >= 0 && which != event.which) return false;
        which = event.which;
        break;
      case Act::forward:
        if (draws(scenario)) return false;
        break;
      case Act::write:
      case Act::zero_grad:
        if (course.in_step()) return false;
        break;
      case Act::discard:
        if (course.micro() > 0) return false;
        break;
      default: break;
    }
    course.follow(event);
  }
  return true;
}

void keep_permitted(Scenario& scenario) {
  const Scenario whole = scenario;
  Course course(whole);
  scenario.events.clear();
  for (const Event& event : whole.events) {
    if (!course.permits(event)) continue;
    course.follow(event);
    scenario.events.push_back(event);
  }
}

}  // namespace zero::test::scenario
