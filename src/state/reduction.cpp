// Gradients on their way to the ranks that hold them: one unit after the other, in the order that all ranks share.
#include <ATen/core/Tensor.h>

#include <algorithm>

#include "base/lap.h"
#include "state/flat.h"
#include "state/gradients.h"
#include "state/pile.h"

namespace zero {

// The same memory for one unit after the other; more only where several are under way at once.
std::shared_ptr<Buffer> Gradients::flat_for(const Unit& unit) {
  wait_for_reductions();
  const auto bytes = [&](const UnitLayout& layout) {
    return layout.length() * size_of(plan_.reduction_dtype(layout.dtype()));
  };
  if (!flat_) {
    std::int64_t largest = 0;
    for (const auto& each : units_)
      if (each->layout().trainable()) largest = std::max(largest, bytes(each->layout()));
    flat_ = new_flat(largest, unit);
  }
  const bool free = flat_.use_count() == 1 && flat_->count() >= bytes(unit.layout());
  return free ? flat_ : new_flat(bytes(unit.layout()), unit);
}

void Gradients::wait_for_reductions() {
  const Lap lap(waited_);
  for (Pending& pending : std::exchange(in_flight_, {})) pending.wait();
}

std::shared_ptr<Buffer> Gradients::new_flat(std::int64_t bytes, const Unit& unit) {
  return std::make_shared<Buffer>(Buffer::visible(accounts_, Owner::reduction, bytes, at::kByte, unit.device()));
}

void Gradients::launch_ready() {
  for (; next_ < order_.size(); ++next_) {
    Pile& pile = *piles_[static_cast<std::size_t>(order_[next_])];
    if (!pile.used) continue;
    if (!pile.complete) return;
    reduce(pile);
  }
}

// The sum over ranks of this micro-batch's gradient, or over those of the step, to where it is held.
void Gradients::reduce(Pile& pile) {
  if (exchange_.size() == 1) return;
  const UnitLayout& layout = pile.unit.layout();
  const Fold add = reduces_each() ? how() : added_to_sum(pile);
  const bool apart = !add.sources.empty() || kept(pile.unit) != accumulation(layout.dtype()) ||
                     (reduces_each() && (pile.levels.size() > 1 || !holds_room(pile.unit)));
  // A flat array is on its way alone, so that here its sum may wait for room, and fail.
  if (apart && reduces_each()) pile.slice = slice_for(pile.unit);
  const bool gathers = movement_.gathers_sum && micro_ >= plan_.accumulate() - 1;
  in_flight_.push_back(
      exchange_.submit({Exchange::Kind::reduce, pile.unit.index(), layout.length(),
                        [this, add, apart, gathers, sent = sent_of(pile), &pile](const Groups& groups) {
                          if (apart && !pile.slice) pile.slice = slice_for(pile.unit);
                          const View sum = groups.reduce(sent, room_for_sum(pile));
                          pile.flat.reset();
                          scale_mean(sum);
                          if (pile.slice) keep_sum(pile, add, sum);
                          pile.slice.reset();
                          if (gathers) gather_sum(groups, pile);
                        }}));
}

// What becomes of a sum over micro-batches: it is the held one, or is added to it.
Fold Gradients::added_to_sum(const Pile& pile) const {
  const int top = static_cast<int>(pile.levels.size()) - 1;
  return adds_apart() ? Fold{{top}, top} : Fold{{}, top};
}

// What of it is sent: the flat array, or the sum over micro-batches from where it lies, or a copy of it in the dtype in
// which it travels.
View Gradients::sent_of(Pile& pile) {
  const UnitLayout& layout = pile.unit.layout();
  const auto whole = [&](void* data, Dtype dtype) {
    return view_of(data, dtype, 0, layout.length(), pile.unit.device());
  };
  if (reduces_each()) return whole(pile.flat->data(), plan_.reduction_dtype(layout.dtype()));
  const Dtype held_in = added_in(pile), sent_in = reduced_from(pile);
  if (sent_in == held_in) return whole(partial(pile), held_in);
  pile.flat = flat_for(pile.unit);
  convert(partial(pile), held_in, pile.flat->data(), sent_in, layout.length());
  return whole(pile.flat->data(), sent_in);
}

// Whether what is held has the room in which the sum is made.
bool Gradients::holds_room(const Unit& unit) const {
  return sum_room(unit.layout(), exchange_.rank()).count <= held(unit).count;
}

View Gradients::room_for_sum(const Pile& pile) const {
  const Slice room = sum_room(pile.unit.layout(), exchange_.rank());
  if (!pile.slice) return held_at(pile, room);
  return view_of(pile.slice.data(), accumulation(pile.unit.layout().dtype()), 0, room.count, pile.unit.device());
}

Buffer Gradients::slice_for(const Unit& unit) const {
  return {accounts_,
          {Owner::reduction, unit.index()},
          sum_room(unit.layout(), exchange_.rank()).count,
          scalar_type(accumulation(unit.layout().dtype())),
          unit.device()};
}

// Elements of the unit in its held gradient.
View Gradients::held_at(const Pile& pile, const Slice& slice) const {
  return view_of(pile.levels.back().data(), kept(pile.unit), slice.begin - held(pile.unit).begin, slice.count,
                 pile.unit.device());
}

// Where the mean over ranks is held.
void Gradients::scale_mean(View sum) const {
  if (plan_.holds_mean()) multiply(sum.data, sum.dtype, sum.count, 1.0 / exchange_.size());
}

// The sum of this rank's slice goes to the held gradient.
void Gradients::keep_sum(Pile& pile, const Fold& how, View sum) const {
  fold(how, levels(pile, pile.unit.slice_begin() - held(pile.unit).begin), kept(pile.unit), sum.data, sum.dtype,
       sum.count);
}

// To the ranks that hold more of it than their slice.
void Gradients::gather_sum(const Groups& groups, const Pile& pile) const {
  const Held kept_here = held(pile.unit);
  groups.gather(held_at(pile, pile.unit.layout().slice(Axis::data, exchange_.rank())), held_at(pile, kept_here),
                Axis::data, kept_here.over);
}

// Rank 0's order of completion becomes everybody's, so that at most one flat array waits from the
// second backward on.
void Gradients::agree_on_order() {
  std::vector<std::int64_t> order(completed_.begin(), completed_.end());
  for (const int index : order_)
    if (std::find(order.begin(), order.end(), index) == order.end()) order.push_back(index);
  const View view{order.data(), static_cast<std::int64_t>(order.size()), Dtype::i64};
  exchange_.run({Exchange::Kind::setup, -1, view.count,
                 [view](const Groups& groups) { groups.along(Axis::data).broadcast(view, 0).wait(); }});
  order_.assign(order.begin(), order.end());
  ordered_ = true;
}

}  // namespace zero
