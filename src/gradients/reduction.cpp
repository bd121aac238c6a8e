// Gradients on their way to the ranks that hold them: one unit after the other, in the order that all ranks share.
#include <ATen/core/Tensor.h>

#include <algorithm>

#include "backwards/running_backward.h"
#include "base/elements.h"
#include "base/timed_scope.h"
#include "gradients/gradients.h"
#include "gradients/unit_gradients.h"
#include "units/for_unit.h"

namespace zero {

// The same memory for one unit after the other, and the next ones where several are on their way; more only where what
// has it waits for more than its own reduction.
std::shared_ptr<Buffer> Gradients::flat_for(const Unit& unit) {
  const auto many = static_cast<std::size_t>(plan_.on_their_way());
  may_wait() ? wait_for_reductions(many - 1) : forget_ended_reductions();
  const auto bytes = [&](const UnitLayout& layout) {
    return sums_.left * layout.length() * size_of(plan_.reduction_dtype(layout.dtype()));
  };
  const std::int64_t wanted = bytes(unit.layout());
  for (const auto& flat : flats_)
    if (flat.use_count() == 1 && flat->count() >= wanted) return flat;
  std::int64_t largest = 0;  // of those that were trained from the start
  for (const auto& each : units_)
    if (each->layout().trainable()) largest = std::max(largest, bytes(each->layout()));
  if (flats_.size() == many || largest < wanted) return new_flat(wanted);
  return flats_.emplace_back(new_flat(largest));
}

// Until no more than so many are left.
void Gradients::wait_for_reductions(std::size_t but) {
  const TimedScope lap(waited_);
  while (in_flight_.size() > but) {
    Reduction first = std::move(in_flight_.front());
    in_flight_.pop_front();
    first.pending.wait();
  }
}

void Gradients::forget_ended_reductions() {
  std::erase_if(in_flight_, [](Reduction& each) {
    if (!each.pending.done()) return false;
    each.pending.wait();
    return true;
  });
}

// Within backward; at its end engines wait one after the other, in an order that all ranks share.
bool Gradients::may_wait() const {
  const RunningBackward* const running = RunningBackward::current();
  return ending_ || exchange_.size() == 1 || running == nullptr || running->may_wait(*engine_);
}

std::shared_ptr<Buffer> Gradients::new_flat(std::int64_t bytes) {
  return std::make_shared<Buffer>(accounts_.visible_buffer(Owner::reduction, bytes, at::kByte));
}

// Sums over micro-batches lie where they are until they may be waited for.
void Gradients::launch_ready() {
  if (!reduces_each() && !may_wait()) return;
  for (; next_ < units_order_.size(); ++next_) {
    UnitGradients& gradients = *by_unit_[static_cast<std::size_t>(units_order_[next_])];
    if (!gradients.used) continue;
    if (!gradients.complete) return;
    reduce(gradients);
  }
  launched_ = true;
}

// The sum over ranks of this micro-batch's gradient, or over those of the step, to where it is held.
void Gradients::reduce(UnitGradients& gradients) {
  if (exchange_.size() == 1) return;
  const UnitLayout& layout = gradients.unit.layout();
  const Route route = routes_.reduce(layout, micro_);
  const std::vector<AccumulateStep> add = reduces_each() ? order_.steps(micro_) : added_to_sum();
  const bool added = !add.front().sources.empty() || (reduces_each() && sums_.levels > 1);
  const bool apart = routes_.apart(layout, route, gradients.held.dtype(), !gradients.home.in_place(), added);
  // Of a flat array that is on its way alone the sum may wait for room here, and fail.
  if (apart && reduces_each() && plan_.on_their_way() == 1) gradients.slice = slice_for(gradients.unit, route);
  const bool gathers = routes_.gathers_sum() && micro_ >= plan_.accumulate() - 1;
  const View sent = sent_of(gradients, route);
  Reduction& way = in_flight_.emplace_back(Pending(), gradients.flat);
  way.pending = exchange_.submit({Exchange::Kind::reduce, gradients.unit.index(), layout.length(),
                                  [this, add, apart, gathers, route, sent, &gradients](const MeshGroups& groups) {
                                    if (apart && !gradients.slice) gradients.slice = slice_for(gradients.unit, route);
                                    const Coder coding = coded_.coder(gradients.unit, route);
                                    const View sums =
                                        groups.carry_out(route, sent, room_for_sum(gradients, route), &coding);
                                    gradients.flat.reset();
                                    coded_.reduced(gradients.unit);
                                    scale_mean(sums);
                                    if (gradients.slice) keep_sums(gradients, add, sums);
                                    gradients.slice.reset();
                                    if (gathers) gather_sum(groups, gradients);
                                  }});
}

// What becomes of a sum over micro-batches: it is the held one, or is added to it.
std::vector<AccumulateStep> Gradients::added_to_sum() const {
  return {adds_apart() ? AccumulateStep{{0}, 0} : AccumulateStep{}};
}

// What of it is sent: the flat array, or the sum over micro-batches from where it lies, or a copy of it, or of all that
// there are, in the dtype in which it travels.
View Gradients::sent_of(UnitGradients& gradients, const Route& route) {
  const UnitLayout& layout = gradients.unit.layout();
  const std::int64_t numbers = route.hops.front().brought() * layout.length();
  const auto whole = [&](void* data, Dtype dtype) { return view_of(data, dtype, 0, numbers, gradients.unit.device()); };
  if (reduces_each()) return whole(gradients.flat->data(), plan_.reduction_dtype(layout.dtype()));
  const Dtype held_in = added_in(gradients), sent_in = routes_.sent(layout, held_in);
  finish_arriving();
  HeldGradient& mine = partial(gradients);
  const Slice all{0, layout.length()};
  if (!routes_.flat(layout, route, held_in, !gradients.home.in_place())) return mine.view(all);
  gradients.flat = flat_for(gradients.unit);
  for (int sum = 0; sum < (adds_apart() ? 1 : order_.left()); ++sum)
    mine.convert_to(gradients.home.staging, sum, all, gradients.flat->block(), sum * layout.length(), sent_in);
  return whole(gradients.flat->data(), sent_in);
}

View Gradients::room_for_sum(const UnitGradients& gradients, const Route& route) const {
  if (!gradients.slice) return gradients.held.view(route.room());
  return view_of(gradients.slice.data(), accumulation(gradients.unit.layout().dtype()), 0, route.numbers(),
                 gradients.unit.device());
}

Buffer Gradients::slice_for(const Unit& unit, const Route& route) const {
  return accounts_.buffer({Owner::reduction, unit.index()}, route.numbers(),
                          scalar_type(accumulation(unit.layout().dtype())));
}

// Where the mean over ranks is held.
void Gradients::scale_mean(View sum) const {
  if (plan_.holds_mean()) accounts_.device().run(Multiply{sum.data, sum.dtype, sum.count, 1.0 / exchange_.size()});
}

// The sum of this rank's slice, or its sums one behind the other, goes to the held gradient.
void Gradients::keep_sums(UnitGradients& gradients, const std::vector<AccumulateStep>& how, View sums) {
  const std::int64_t count = sums.count / static_cast<std::int64_t>(how.size());
  for_unit(gradients.unit, "the gradient", [&] {
    for (std::size_t i = 0; i < how.size(); ++i) {
      const View sum{at_element(sums.data, static_cast<std::int64_t>(i) * count, sums.dtype), count, sums.dtype};
      const auto reduced = std::make_shared<Block>(accounts_.borrowed(sum.data, sum.bytes(), Owner::gradient));
      StagedPass passage(gradients.home.late_staging);
      gradients.held.add(passage, how[i], {gradients.unit.slice_begin(), count}, reduced, sum.dtype);
      passage.finish();
    }
  });
}

// To the ranks that hold more of it than their slice.
void Gradients::gather_sum(const MeshGroups& groups, const UnitGradients& gradients) const {
  const HeldGradient& held = gradients.held;
  const Route route = routes_.sum(gradients.unit.layout());
  groups.carry_out(route, held.view(route.from), held.view(route.room()));
}

// Rank 0's order of completion becomes everybody's, so that at most one flat array waits from the
// second backward on.
void Gradients::agree_on_order() {
  std::vector<std::int64_t> order(completed_.begin(), completed_.end());
  for (const int index : units_order_)
    if (std::find(order.begin(), order.end(), index) == order.end()) order.push_back(index);
  const View view{order.data(), static_cast<std::int64_t>(order.size()), Dtype::i64};
  exchange_.confer(Exchange::Kind::order, [view](const Communicator& all) { all.broadcast(view, 0).wait(); });
  units_order_.assign(order.begin(), order.end());
  ordered_ = true;
}

}  // namespace zero
