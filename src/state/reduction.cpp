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

void Gradients::reduce(Pile& pile) {
  if (exchange_.size() == 1) return;
  if (!reduces_each()) return reduce_partial(pile);
  const UnitLayout& layout = pile.unit.layout();
  const Dtype wide = accumulation(layout.dtype());
  const Dtype wire = plan_.reduction_dtype(layout.dtype());
  const Fold add = how();
  if (!add.sources.empty() || pile.levels.size() > 1 || kept(pile.unit) != wide) pile.slice = slice_for(pile.unit);
  in_flight_.push_back(exchange_.submit({Exchange::Kind::reduce, pile.unit.index(), layout.length(),
                                         [this, add, wide, wire, &pile](const Communicator& communicator) {
                                           const UnitLayout& l = pile.unit.layout();
                                           void* sum = pile.slice ? pile.slice.data() : pile.levels.back().data();
                                           communicator
                                               .reduce_scatter(
                                                   view_of(pile.flat->data(), wire, 0, l.length(), pile.unit.device()),
                                                   view_of(sum, wide, 0, l.shard_length(), pile.unit.device()))
                                               .wait();
                                           pile.flat.reset();
                                           scale_mean(sum, wide, l.shard_length());
                                           if (pile.slice) keep_sum(pile, add, 0, pile.slice);
                                           pile.slice.reset();
                                         }}));
}

// Room for the sum of this rank's slice.
Buffer Gradients::slice_for(const Unit& unit) const {
  const UnitLayout& layout = unit.layout();
  return {accounts_,
          {Owner::reduction, unit.index()},
          layout.shard_length(),
          scalar_type(accumulation(layout.dtype())),
          unit.device()};
}

// Where the mean over ranks is held.
void Gradients::scale_mean(void* sum, Dtype dtype, std::int64_t count) const {
  if (!plan_.holds_mean()) return;
  multiply(sum, dtype, count, 1.0 / exchange_.size());
}

// The sum of the slice goes to the held gradient, from its element `begin` on.
void Gradients::keep_sum(Pile& pile, const Fold& how, std::int64_t begin, const Buffer& slice) {
  fold(how, levels(pile, begin), kept(pile.unit), slice.data(), accumulation(pile.unit.layout().dtype()),
       slice.count());
}

// The sum over micro-batches, added over ranks from where it lies, or from a copy in the dtype in which it travels.
void Gradients::reduce_partial(Pile& pile) {
  const UnitLayout& layout = pile.unit.layout();
  Unit& unit = pile.unit;
  const Dtype held = added_in(pile), sent_in = reduced_from(pile), wide = accumulation(layout.dtype());
  void* const sum = pile.levels.back().data();
  const View whole = view_of(sum, kept(unit), 0, layout.length(), unit.device());
  const View mine = view_of(sum, kept(unit), unit.shard_begin(), layout.shard_length(), unit.device());
  View sent = view_of(partial(pile), held, 0, layout.length(), unit.device());
  if (sent_in != held) {
    pile.flat = flat_for(unit);
    convert(sent.data, held, pile.flat->data(), sent_in, layout.length());
    sent = view_of(pile.flat->data(), sent_in, 0, layout.length(), unit.device());
  }
  const bool replicated = movement_.gathers_sum;
  const int top = static_cast<int>(pile.levels.size()) - 1;
  const Fold add = adds_apart() ? Fold{{top}, top} : Fold{{}, top};
  const bool apart = adds_apart() || mine.dtype != wide;
  in_flight_.push_back(exchange_.submit(
      {Exchange::Kind::reduce, unit.index(), layout.length(),
       [this, replicated, wide, sent, mine, whole, add, apart, &pile](const Communicator& communicator) {
         const Buffer slice = apart ? slice_for(pile.unit) : Buffer();
         const View target = slice ? view_of(slice.data(), wide, 0, mine.count, pile.unit.device()) : mine;
         communicator.reduce_scatter(sent, target).wait();
         pile.flat.reset();
         scale_mean(target.data, wide, target.count);
         if (slice) keep_sum(pile, add, pile.unit.shard_begin(), slice);
         if (replicated) communicator.all_gather(mine, whole).wait();
       }}));
}

// Rank 0's order of completion becomes everybody's, so that at most one flat array waits from the
// second backward on.
void Gradients::agree_on_order() {
  std::vector<std::int64_t> order(completed_.begin(), completed_.end());
  for (const int index : order_)
    if (std::find(order.begin(), order.end(), index) == order.end()) order.push_back(index);
  const View view{order.data(), static_cast<std::int64_t>(order.size()), Dtype::i64};
  exchange_.run({Exchange::Kind::setup, -1, view.count,
                 [view](const Communicator& communicator) { communicator.broadcast(view, 0).wait(); }});
  order_.assign(order.begin(), order.end());
  ordered_ = true;
}

}  // namespace zero
