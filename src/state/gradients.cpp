#include "state/gradients.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <numeric>

#include "state/flat.h"
#include "state/pile.h"
#include "state/window.h"
#include "zero/error.h"
#include "zero/estimate.h"

namespace zero {

// A tensor has room for one such hook: the program's own is called by ours, before the gradient is taken.
class Gradients::Hook : public torch::autograd::PostAccumulateGradHook {
 public:
  using Other = std::unique_ptr<torch::autograd::PostAccumulateGradHook>;

  Hook(Gradients& owner, int unit, int slot, Other other)
      : owner_(owner), unit_(unit), slot_(slot), other_(std::move(other)) {}
  void operator()(const torch::autograd::Variable& parameter) override {
    if (other_) (*other_)(parameter);
    owner_.take(unit_, slot_, parameter);
  }
  bool of(const Gradients& owner) const { return &owner_ == &owner; }
  Other release_other() { return std::move(other_); }

 private:
  Gradients& owner_;
  int unit_;
  int slot_;
  Other other_;
};

namespace {

// Null where there is none.
torch::autograd::PostAccumulateGradHook* hook_of(const at::Tensor& parameter) {
  if (parameter.unsafeGetTensorImpl()->autograd_meta() == nullptr) return nullptr;
  return torch::autograd::impl::post_acc_grad_hooks(parameter).get();
}

}  // namespace

Gradients::Gradients(std::vector<std::unique_ptr<Unit>>& units, Exchange& exchange, const Plan& plan,
                     Accounts& accounts)
    : units_(units), exchange_(exchange), plan_(plan), movement_(movement(plan)), accounts_(accounts) {
  for (auto& unit : units_)
    piles_.push_back(std::make_unique<Pile>(*unit, plan_.gradient_dtype(unit->layout().dtype())));
  order_.resize(units_.size());
  std::iota(order_.rbegin(), order_.rend(), 0);
  hook_in();
}

// At the start, and where the program has replaced a hook since.
void Gradients::hook_in() {
  for (auto& unit : units_)
    for (std::size_t slot = 0; slot < unit->parameters().size(); ++slot) {
      const at::Tensor& parameter = unit->parameters()[slot];
      auto* const there = hook_of(parameter);
      if (const auto* const ours = dynamic_cast<const Hook*>(there); ours != nullptr && ours->of(*this)) continue;
      Hook::Other other;
      if (there != nullptr) other = std::move(torch::autograd::impl::post_acc_grad_hooks(parameter));
      torch::autograd::impl::set_post_acc_grad_hooks(
          parameter, std::make_unique<Hook>(*this, unit->index(), static_cast<int>(slot), std::move(other)));
    }
}

Gradients::~Gradients() {
  for (auto& unit : units_)
    for (const at::Tensor& parameter : unit->parameters())
      if (auto* const ours = dynamic_cast<Hook*>(hook_of(parameter)); ours != nullptr && ours->of(*this))
        torch::autograd::impl::set_post_acc_grad_hooks(parameter, ours->release_other());
}

void Gradients::require_planned(int micro) const {
  if (plan_.reproducible() && plan_.accumulate() > 1 && micro >= plan_.accumulate())
    throw StateError(
        "backward number " + std::to_string(micro + 1) + " of a step planned for " + std::to_string(plan_.accumulate()),
        "a reproducible plan adds exactly `accumulate` micro-batches: raise it, or call step()");
}

void Gradients::begin(int micro) {
  hook_in();
  micro_ = micro;
  next_ = 0;
  completed_.clear();
  if (beyond_plan()) hold_wide();
  for (auto& pile : piles_) {
    const auto& parameters = pile->unit.parameters();
    pile->expected = static_cast<int>(std::count_if(
        parameters.begin(), parameters.end(), [](const at::Tensor& p) { return p.requires_grad() && p.numel() > 0; }));
    pile->arrived = 0;
    pile->complete = false;
    std::fill(pile->here.begin(), pile->here.end(), 0);
    if (pile->expected > 0 && !pile->used) {
      open(*pile);
      pile->used = true;
    }
    if (pile->used && adds_apart() && !pile->extra) pile->extra = new_partial(pile->unit, pile->planned);
  }
  active_ = true;
}

// Accumulators, with zeros where no parameter lies, and everywhere for a unit unfrozen within a step.
void Gradients::open(Pile& pile) {
  if (pile.levels.empty()) {
    std::vector<Buffer> levels;
    for (int level = 0; level < accumulation_levels(plan_); ++level) levels.push_back(new_level(pile.unit, pile.kept));
    pile.levels = std::move(levels);
  }
  for (const Buffer& level : pile.levels)
    if (micro_ > 0) level.tensor().zero_();
}

Dtype Gradients::kept(const Unit& unit) const {
  return piles_[static_cast<std::size_t>(unit.index())]->kept;
}

Dtype Gradients::added_in(const Pile& pile) const {
  return adds_apart() ? pile.planned : pile.kept;
}

Dtype Gradients::reduced_from(const Pile& pile) const {
  return plan_.reduction() ? plan_.reduction_dtype(pile.unit.layout().dtype()) : added_in(pile);
}

void* Gradients::partial(const Pile& pile) const {
  return adds_apart() ? pile.extra.data() : pile.levels.back().data();
}

Buffer Gradients::new_level(const Unit& unit, Dtype dtype) const {
  if (!reduces_each()) return new_partial(unit, dtype);
  return {accounts_, {Owner::gradient, unit.index()}, held(unit).count, scalar_type(dtype), unit.device()};
}

// Of the whole unit, zero where no parameter lies.
Buffer Gradients::new_partial(const Unit& unit, Dtype dtype) const {
  const UnitLayout& layout = unit.layout();
  Buffer buffer =
      Buffer::visible(accounts_, {Owner::gradient, unit.index()}, layout.length(), scalar_type(dtype), unit.device());
  for (const auto& [begin, end] : layout.gaps()) buffer.tensor().slice(0, begin, end).zero_();
  return buffer;
}

// For sums over micro-batches that were not planned.
void Gradients::hold_wide() {
  for (auto& pile : piles_) {
    const Dtype wide = accumulation(pile->unit.layout().dtype());
    if (pile->kept == wide) continue;
    std::vector<Buffer> wider;
    for (const Buffer& level : pile->levels) {
      wider.push_back(new_level(pile->unit, wide));
      wider.back().tensor().copy_(level.tensor());
    }
    pile->levels = std::move(wider);
    pile->kept = wide;
  }
}

// What becomes of this micro-batch's gradient among those that are held.
Fold Gradients::how() const {
  const int levels = accumulation_levels(plan_);
  if (beyond_plan()) return {{levels - 1}, levels - 1};
  return fold_of(plan_.reproducible(), levels, micro_, plan_.accumulate());
}

// Whether a gradient that arrives now is wanted.
bool Gradients::accepts(const std::string& parameter) {
  if (!active_ && window::in_backward() && begin_from_outside_) begin_from_outside_();
  if (active_ || window::in_backward()) return active_;
  throw StateError("rank " + std::to_string(exchange_.rank()) + ": a gradient of parameter '" + parameter +
                       "' arrived outside Engine::backward",
                   "call engine.backward(loss) instead of loss.backward()");
}

void Gradients::take(int unit, int slot, const at::Tensor& parameter) {
  Pile& pile = *piles_[static_cast<std::size_t>(unit)];
  const std::string& name = pile.unit.layout().slots()[static_cast<std::size_t>(slot)].name;
  const at::Tensor arrived_gradient = std::exchange(parameter.mutable_grad(), at::Tensor());
  if (!accepts(name) || !arrived_gradient.defined() || parameter.numel() == 0) return;
  if (pile.complete)
    throw StateError("rank " + std::to_string(exchange_.rank()) + ": a second gradient of parameter '" + name +
                         "' arrived after its unit was reduced",
                     "nested backward passes must not reach parameters twice");
  const Dtype dtype = pile.unit.layout().dtype();
  const Dtype summed = reduces_each() ? plan_.reduction_dtype(dtype) : added_in(pile);
  if (pile.here[static_cast<std::size_t>(slot)] && summed != accumulation(dtype))
    throw StateError("rank " + std::to_string(exchange_.rank()) + ": a second gradient of parameter '" + name +
                         "' arrived in one backward, and its sum in " + std::string(zero::name(summed)) +
                         " would depend on the plan",
                     reduces_each() ? "nested backward passes need Plan::reduce_in(Dtype::f32)"
                                    : "nested backward passes need precision fp32 or Plan::accumulate above 1");
  at::NoGradGuard no_grad;
  const at::Tensor gradient = in_order_of(parameter, arrived_gradient);
  if (reduces_each()) {
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
  const Dtype held = added_in(pile);
  const auto apart = [&] { return std::vector<void*>{at_element(partial(pile), place.begin, held)}; };
  Fold fold_it = adds_apart() ? Fold{} : how();
  if (pile.here[static_cast<std::size_t>(slot)]) fold_it.sources = {fold_it.target};
  fold(fold_it, adds_apart() ? apart() : levels(pile, place.begin), held,
       gradient == nullptr ? nullptr : gradient->const_data_ptr(), layout.dtype(), place.numel);
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

// Parameters without a gradient count as zero.
void Gradients::complete(Pile& pile) {
  for (std::size_t slot = 0; slot < pile.here.size(); ++slot) {
    if (pile.here[slot]) continue;
    if (reduces_each()) {
      collect(pile, static_cast<int>(slot), nullptr);
    } else {
      add_partial(pile, static_cast<int>(slot), nullptr);
    }
  }
  pile.complete = true;
  completed_.push_back(pile.unit.index());
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
    pile->extra.reset();
    if (std::exchange(pile->kept, pile->planned) != pile->planned) pile->levels.clear();
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
  return held(*units_[static_cast<std::size_t>(unit)]).begin;
}

bool Gradients::arrived(int unit, int slot) const {
  return piles_[static_cast<std::size_t>(unit)]->ever[static_cast<std::size_t>(slot)] != 0;
}

}  // namespace zero
