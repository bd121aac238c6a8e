#include "state/gradients.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <numeric>

#include "base/lap.h"
#include "state/flat.h"
#include "state/pile.h"
#include "zero/error.h"
#include "zero/estimate.h"

namespace zero {

class Gradients::Hook : public torch::autograd::PostAccumulateGradHook {
 public:
  Hook(Gradients& owner, int unit, int slot) : owner_(owner), unit_(unit), slot_(slot) {}
  void operator()(const torch::autograd::Variable& parameter) override { owner_.take(unit_, slot_, parameter); }

 private:
  Gradients& owner_;
  int unit_;
  int slot_;
};

Gradients::Gradients(std::vector<std::unique_ptr<Unit>>& units, Exchange& exchange, const Plan& plan,
                     Accounts& accounts)
    : units_(units), exchange_(exchange), plan_(plan), row_(plan[State::gradient]), accounts_(accounts) {
  for (auto& unit : units_) {
    piles_.push_back(std::make_unique<Pile>(*unit, plan_.gradient_dtype(unit->layout().dtype())));
    for (std::size_t slot = 0; slot < unit->parameters().size(); ++slot)
      torch::autograd::impl::set_post_acc_grad_hooks(
          unit->parameters()[slot], std::make_unique<Hook>(*this, unit->index(), static_cast<int>(slot)));
  }
  order_.resize(units_.size());
  std::iota(order_.rbegin(), order_.rend(), 0);
}

Gradients::~Gradients() {
  for (auto& unit : units_)
    for (const at::Tensor& parameter : unit->parameters())
      torch::autograd::impl::set_post_acc_grad_hooks(parameter, nullptr);
}

bool Gradients::reduces_now() const {
  return shards_between() || micro_ >= plan_.accumulate() - 1;
}

void Gradients::begin(int micro) {
  if (plan_.reproducible() && micro >= plan_.accumulate())
    throw StateError(
        "backward number " + std::to_string(micro + 1) + " of a step planned for " + std::to_string(plan_.accumulate()),
        "a reproducible plan adds exactly `accumulate` micro-batches: raise it, or call step()");
  micro_ = micro;
  next_ = 0;
  completed_.clear();
  if (micro >= plan_.accumulate()) hold_wide();
  if (micro >= plan_.accumulate() && !shards_between() && exchange_.size() > 1) reopen();
  for (auto& pile : piles_) {
    const auto& parameters = pile->unit.parameters();
    pile->expected = static_cast<int>(std::count_if(
        parameters.begin(), parameters.end(), [](const at::Tensor& p) { return p.requires_grad() && p.numel() > 0; }));
    pile->arrived = 0;
    pile->complete = false;
    std::fill(pile->here.begin(), pile->here.end(), 0);
    if (pile->expected > 0 && !std::exchange(pile->used, true)) open(*pile);
  }
  active_ = true;
}

// Accumulators, with zeros where no parameter lies, and everywhere for a unit unfrozen within a step.
void Gradients::open(Pile& pile) {
  if (!pile.levels.empty()) {
    for (const Buffer& level : pile.levels)
      if (micro_ > 0) level.tensor().zero_();
    return;
  }
  for (int level = 0; level < accumulation_levels(plan_); ++level) {
    const Buffer& buffer = pile.levels.emplace_back(new_level(pile.unit));
    if (micro_ > 0) buffer.tensor().zero_();
    if (shards_between()) continue;
    for (const auto& [begin, end] : pile.unit.layout().gaps()) buffer.tensor().slice(0, begin, end).zero_();
  }
}

Dtype Gradients::kept(const Unit& unit) const {
  return piles_[static_cast<std::size_t>(unit.index())]->kept;
}

Dtype Gradients::wire(const Unit& unit) const {
  const bool as_held = !shards_between() && !plan_.reduction();
  return as_held ? kept(unit) : plan_.reduction_dtype(unit.layout().dtype());
}

Buffer Gradients::new_level(const Unit& unit) const {
  const UnitLayout& layout = unit.layout();
  const Account account{Owner::gradient, unit.index()};
  const at::ScalarType dtype = scalar_type(kept(unit));
  if (shards_between()) return {accounts_, account, layout.shard_length(), dtype, unit.device()};
  return Buffer::visible(accounts_, account, layout.length(), dtype, unit.device());
}

// For sums over micro-batches that were not planned.
void Gradients::hold_wide() {
  for (auto& pile : piles_) {
    const Dtype wide = accumulation(pile->unit.layout().dtype());
    if (std::exchange(pile->kept, wide) == wide) continue;
    for (Buffer& level : pile->levels) {
      Buffer wider = new_level(pile->unit);
      wider.tensor().copy_(level.tensor());
      level = std::move(wider);
    }
  }
}

// The sum over ranks of what was reduced lives in each rank's own slice, or the mean, of which it is made again; the
// rest counts as zero when more micro-batches are added to it.
void Gradients::reopen() {
  for (auto& pile : piles_) {
    if (pile->levels.empty()) continue;
    const at::Tensor& sum = pile->levels.back().tensor();
    sum.slice(0, 0, pile->unit.shard_begin()).zero_();
    const std::int64_t end = pile->unit.shard_begin() + pile->unit.layout().shard_length();
    sum.slice(0, end, sum.numel()).zero_();
    if (plan_.holds_mean()) sum.slice(0, pile->unit.shard_begin(), end).mul_(exchange_.size());
  }
}

void Gradients::take(int unit, int slot, const at::Tensor& parameter) {
  Pile& pile = *piles_[static_cast<std::size_t>(unit)];
  const std::string& name = pile.unit.layout().slots()[static_cast<std::size_t>(slot)].name;
  const at::Tensor arrived_gradient = std::exchange(parameter.mutable_grad(), at::Tensor());
  if (!active_)
    throw StateError("rank " + std::to_string(exchange_.rank()) + ": a gradient of parameter '" + name +
                         "' arrived outside Engine::backward",
                     "call engine.backward(loss) instead of loss.backward()");
  if (parameter.numel() == 0) return;
  if (pile.complete)
    throw StateError("rank " + std::to_string(exchange_.rank()) + ": a second gradient of parameter '" + name +
                         "' arrived after its unit was reduced",
                     "nested backward passes must not reach parameters twice");
  const Dtype dtype = pile.unit.layout().dtype();
  const Dtype summed = shards_between() ? plan_.reduction_dtype(dtype) : kept(pile.unit);
  if (pile.here[static_cast<std::size_t>(slot)] && summed != accumulation(dtype))
    throw StateError("rank " + std::to_string(exchange_.rank()) + ": a second gradient of parameter '" + name +
                         "' arrived in one backward, and its sum in " + std::string(zero::name(summed)) +
                         " would depend on the plan",
                     shards_between() ? "nested backward passes need Plan::reduce_in(Dtype::f32)"
                                      : "nested backward passes need precision fp32 or Plan::accumulate above 1");
  at::NoGradGuard no_grad;
  const at::Tensor gradient = in_order_of(parameter, arrived_gradient);
  if (shards_between()) {
    collect(pile, slot, &gradient);
  } else {
    add_partial(pile, slot, &gradient);
  }
  const auto index = static_cast<std::size_t>(slot);
  if (!std::exchange(pile.here[index], char{1})) ++pile.arrived;
  pile.ever[index] = 1;
  if (pile.arrived == pile.expected) {
    complete(pile);
    if (reduces_now()) launch_ready();
  }
}

std::vector<void*> Gradients::levels(const Pile& pile, std::int64_t begin) const {
  std::vector<void*> pointers;
  for (const Buffer& level : pile.levels) pointers.push_back(at_element(level.data(), begin, kept(pile.unit)));
  return pointers;
}

void Gradients::add_partial(Pile& pile, int slot, const at::Tensor* gradient) {
  const UnitLayout& layout = pile.unit.layout();
  const Slot& place = layout.slots()[static_cast<std::size_t>(slot)];
  Fold how = fold_of(plan_.reproducible(), accumulation_levels(plan_), micro_, plan_.accumulate());
  if (pile.here[static_cast<std::size_t>(slot)]) how.sources = {how.target};
  fold(how, levels(pile, place.begin), kept(pile.unit), gradient == nullptr ? nullptr : gradient->const_data_ptr(),
       layout.dtype(), place.numel);
}

void Gradients::collect(Pile& pile, int slot, const at::Tensor* gradient) {
  const UnitLayout& layout = pile.unit.layout();
  const Dtype wire = plan_.reduction_dtype(layout.dtype());
  const Slot& place = layout.slots()[static_cast<std::size_t>(slot)];
  if (!pile.flat) {
    pile.flat = flat_for(pile.unit);
    for (const auto& [begin, end] : layout.gaps())
      std::memset(at_element(pile.flat->data(), begin, wire), 0, bytes_of(end - begin, wire));
  }
  void* const target = at_element(pile.flat->data(), place.begin, wire);
  if (gradient == nullptr) {
    std::memset(target, 0, bytes_of(place.numel, wire));
  } else if (pile.here[static_cast<std::size_t>(slot)]) {
    add_in_place(target, gradient->const_data_ptr(), layout.dtype(), wire, place.numel);
  } else {
    convert(gradient->const_data_ptr(), layout.dtype(), target, wire, place.numel);
  }
}

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

// Parameters without a gradient count as zero.
void Gradients::complete(Pile& pile) {
  for (std::size_t slot = 0; slot < pile.here.size(); ++slot) {
    if (pile.here[slot]) continue;
    if (shards_between()) {
      collect(pile, static_cast<int>(slot), nullptr);
    } else {
      add_partial(pile, static_cast<int>(slot), nullptr);
    }
  }
  pile.complete = true;
  completed_.push_back(pile.unit.index());
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
  if (!shards_between()) return reduce_partial(pile);
  const UnitLayout& layout = pile.unit.layout();
  const Dtype wide = accumulation(layout.dtype());
  const Dtype wire = plan_.reduction_dtype(layout.dtype());
  const Fold how = fold_of(plan_.reproducible(), accumulation_levels(plan_), micro_, plan_.accumulate());
  if (!how.sources.empty() || pile.levels.size() > 1 || kept(pile.unit) != wide) pile.slice = slice_for(pile.unit);
  in_flight_.push_back(exchange_.submit({Exchange::Kind::reduce, pile.unit.index(), layout.length(),
                                         [this, how, wide, wire, &pile](const Communicator& communicator) {
                                           const UnitLayout& l = pile.unit.layout();
                                           void* sum = pile.slice ? pile.slice.data() : pile.levels.back().data();
                                           communicator
                                               .reduce_scatter(
                                                   view_of(pile.flat->data(), wire, 0, l.length(), pile.unit.device()),
                                                   view_of(sum, wide, 0, l.shard_length(), pile.unit.device()))
                                               .wait();
                                           pile.flat.reset();
                                           scale_mean(sum, wide, l.shard_length());
                                           if (pile.slice) keep_sum(pile, how, 0, pile.slice);
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
  const Dtype held = kept(unit), sent_in = wire(unit), wide = accumulation(layout.dtype());
  void* const sum = pile.levels.back().data();
  const View whole = view_of(sum, held, 0, layout.length(), unit.device());
  const View mine = view_of(sum, held, unit.shard_begin(), layout.shard_length(), unit.device());
  View sent = whole;
  if (sent_in != held) {
    pile.flat = flat_for(unit);
    convert(sum, held, pile.flat->data(), sent_in, layout.length());
    sent = view_of(pile.flat->data(), sent_in, 0, layout.length(), unit.device());
  }
  const bool replicated = row_.placement == Placement::replicated;
  in_flight_.push_back(exchange_.submit(
      {Exchange::Kind::reduce, unit.index(), layout.length(),
       [this, replicated, wide, sent, mine, whole, &pile](const Communicator& communicator) {
         const Buffer slice = mine.dtype == wide ? Buffer() : slice_for(pile.unit);
         const View target = slice ? view_of(slice.data(), wide, 0, mine.count, pile.unit.device()) : mine;
         communicator.reduce_scatter(sent, target).wait();
         pile.flat.reset();
         scale_mean(target.data, wide, target.count);
         if (slice) keep_sum(pile, {{}, static_cast<int>(pile.levels.size()) - 1}, pile.unit.shard_begin(), slice);
         if (replicated) communicator.all_gather(mine, whole).wait();
       }}));
}

void Gradients::end() {
  at::NoGradGuard no_grad;
  for (const int index : order_) {
    Pile& pile = *piles_[static_cast<std::size_t>(index)];
    if (!pile.used || pile.complete) continue;
    complete(pile);
    if (reduces_now()) launch_ready();
  }
  wait_for_reductions();
  active_ = false;
  if (!ordered_ && exchange_.size() > 1) agree_on_order();
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

void Gradients::abort() {
  for (Pending& pending : std::exchange(in_flight_, {})) {
    try {
      pending.wait();
    } catch (const std::exception&) {
      // The failure that ends the step is already on its way to the caller.
    }
  }
  for (auto& pile : piles_) {
    pile->flat.reset();
    pile->slice.reset();
  }
  active_ = false;
  clear();
}

void Gradients::clear() {
  for (auto& pile : piles_) {
    std::fill(pile->ever.begin(), pile->ever.end(), 0);
    pile->used = false;
  }
}

void* Gradients::data(int unit) const {
  const Pile& pile = *piles_[static_cast<std::size_t>(unit)];
  return pile.used ? pile.levels.back().data() : nullptr;
}

Dtype Gradients::dtype(int unit) const {
  return kept(*units_[static_cast<std::size_t>(unit)]);
}

std::int64_t Gradients::origin(int unit) const {
  return shards_between() ? units_[static_cast<std::size_t>(unit)]->shard_begin() : 0;
}

bool Gradients::arrived(int unit, int slot) const {
  return piles_[static_cast<std::size_t>(unit)]->ever[static_cast<std::size_t>(slot)] != 0;
}

}  // namespace zero
