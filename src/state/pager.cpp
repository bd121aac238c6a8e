#include "state/pager.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>

#include "base/lap.h"
#include "base/random.h"
#include "state/window.h"
#include "zero/error.h"

namespace zero {
namespace {

// Of a program that runs forwards with gradients and never a backward.
constexpr std::size_t kLongestTrace = 1 << 16;

// Keeps the units of one operator from releasing each other.
class Together {
 public:
  Together(Residency& residency, std::span<Unit* const> units) : residency_(residency), units_(units) {
    for (const Unit* unit : units_) residency_.pin(unit->index());
  }
  ~Together() {
    for (const Unit* unit : units_) residency_.unpin(unit->index());
  }
  Together(const Together&) = delete;
  Together& operator=(const Together&) = delete;

 private:
  Residency& residency_;
  std::span<Unit* const> units_;
};

}  // namespace

Pager::Pager(std::vector<std::unique_ptr<Unit>>& units, Exchange& exchange, Residency residency, Accounts& accounts,
             const Settings& settings)
    : units_(units),
      exchange_(exchange),
      witness_(accounts),
      settings_(settings),
      max_norms_(settings.max_norms),
      residency_(std::move(residency)),
      pending_(units.size()),
      in_flight_(units.size()),
      pins_(units.size()),
      generator_(at::detail::createCPUGenerator(derived(settings.seed, 0))) {
  for (const auto& unit : units_) unit->pager = this;
}

Pager::~Pager() {
  close_window();
}

void Pager::touch(std::span<Unit* const> units) {
  const Together together(residency_, units);
  for (Unit* unit : units) record(*unit);
  for (Unit* unit : units) fetch(*unit);
  prefetch_after(*units.back());
}

void Pager::fetch(Unit& unit) {
  const int index = unit.index();
  if (in_flight_[static_cast<std::size_t>(index)]) settle(unit);
  if (!unit.sharded()) return;
  if (residency_.resident(index)) return residency_.touch(index);
  start_gather(unit, -1, /*exactly=*/false);
  settle(unit);
}

void Pager::settle_published(Unit& unit) {
  if (!unit.sharded() && in_flight_[static_cast<std::size_t>(unit.index())]) settle(unit);
}

void Pager::start_gather(Unit& unit, int keep, bool exactly) {
  for (const int other : residency_.admit(unit.index(), keep)) evict(other);
  const View whole = room_for(unit);
  if (unit.common()) {
    for (const Hop& hop : unit.hops()) {
      const std::int64_t bytes = (exchange_.mesh().size(hop.axis) - 1) * hop.bytes;
      settings_.meter->count(hop.collective, {.bytes = bytes, .in_place = bytes});
    }
    return expect(unit, renewed_);
  }
  const bool other = exactly && !unit.gathered_exactly();
  expect(unit,
         exchange_.submit({other ? Exchange::Kind::exact_gather : Exchange::Kind::gather, unit.index(), whole.count,
                           [&unit, whole, exactly](const Groups& groups) { unit.gather(groups, whole, exactly); }}));
}

View Pager::room_for(Unit& unit) {
  try {
    return unit.make_room();
  } catch (...) {
    residency_.drop(unit.index());
    throw;
  }
}

void Pager::expect(Unit& unit, Pending pending) {
  const auto index = static_cast<std::size_t>(unit.index());
  pending_[index] = std::move(pending);
  in_flight_[index] = 1;
}

void Pager::settle(Unit& unit) {
  const auto index = static_cast<std::size_t>(unit.index());
  in_flight_[index] = 0;
  const Lap lap(waited_);
  std::optional<Acting> gathering;
  if (unit.common()) gathering.emplace(observer_, Activity::gather, unit.index());
  try {
    std::exchange(pending_[index], Pending()).wait();
  } catch (...) {
    if (unit.sharded()) evict(unit.index());
    throw;
  }
  unit.install();
}

void Pager::evict(int unit) {
  const auto index = static_cast<std::size_t>(unit);
  residency_.drop(unit);
  if (in_flight_[index]) {
    in_flight_[index] = 0;
    const Lap lap(waited_);
    try {
      std::exchange(pending_[index], Pending()).wait();
    } catch (const std::exception&) {
      // Nobody wants this unit any more; the exchange repeats the failure at its next operation.
    }
  }
  units_[index]->evict();
}

void Pager::record(Unit& unit) {
  if (!in_backward_ && !at::GradMode::is_enabled()) return;
  if (!current_.touches.empty() && current_.touches.back() == unit.index()) return;
  if (current_.touches.size() >= kLongestTrace) current_.touches.clear();
  const bool first = current_.touches.empty();
  current_.touches.push_back(unit.index());
  if (!last_) return;
  const auto from =
      last_->touches.begin() + (first ? 0
                                      : std::min<std::ptrdiff_t>(static_cast<std::ptrdiff_t>(cursor_) + 1,
                                                                 static_cast<std::ptrdiff_t>(last_->touches.size())));
  const auto found = std::find(from, last_->touches.end(), unit.index());
  lost_ = found == last_->touches.end();
  if (!lost_) cursor_ = static_cast<std::size_t>(found - last_->touches.begin());
}

int Pager::predicted_next() const {
  if (lost_ || !last_) return -1;
  if (cursor_ + 1 < last_->touches.size()) return last_->touches[cursor_ + 1];
  return more_to_come_ ? last_->touches.front() : -1;
}

void Pager::prefetch_after(Unit& unit) {
  const int next = predicted_next();
  if (next < 0 || next == unit.index()) return;
  Unit& other = *units_[static_cast<std::size_t>(next)];
  if (!other.sharded() || residency_.resident(next) || !residency_.fits_beside(unit.index(), next)) return;
  start_gather(other, unit.index(), /*exactly=*/false);
}

void Pager::begin_backward(bool more_to_come) {
  if (Pager* open = window::open()) open->close_window();
  window::set_in_backward(true);
  in_backward_ = true;
  more_to_come_ = more_to_come;
  backward_.emplace(observer_, Activity::backward);
  witness_.start();
}

void Pager::end_backward() {
  in_backward_ = false;
  backward_.reset();
  window::set_in_backward(false);
  witness_.stop();
  last_ = std::exchange(current_, Trace());
  lost_ = true;
}

void Pager::abort() {
  close_window();
  backward_.reset();
  witness_.stop();
  if (std::exchange(in_backward_, false)) window::set_in_backward(false);
  current_.touches.clear();
  lost_ = true;
}

void Pager::next_micro_batch(std::int64_t index) {
  next_index_ = index;
  seeded_ = false;
}

void Pager::forget() {
  for (const int unit : residency_.residents()) evict(unit);
}

void Pager::pin(Unit& unit) {
  if (pins_[static_cast<std::size_t>(unit.index())]++ > 0) return;
  residency_.pin(unit.index());
  try {
    fetch_exactly(unit);
    unit.privatise();
  } catch (...) {
    unpin(unit);
    throw;
  }
}

void Pager::unpin(Unit& unit) {
  if (--pins_[static_cast<std::size_t>(unit.index())] > 0) return;
  residency_.unpin(unit.index());
  unit.share();
  if (!unit.gathered_exactly()) discard(unit);
}

// For scopes that see and write what the shards hold.
void Pager::fetch_exactly(Unit& unit) {
  if (unit.gathered_exactly() || !unit.sharded()) return fetch(unit);
  if (residency_.resident(unit.index())) evict(unit.index());
  start_gather(unit, -1, /*exactly=*/true);
  settle(unit);
}

void Pager::discard(Unit& unit) {
  if (unit.sharded()) evict(unit.index());
}

void Pager::open_window() {
  if (window::in_backward()) return refuse_recomputation();
  if (!seeded_ && at::GradMode::is_enabled()) {
    seeded_ = true;
    generator_.set_current_seed(derived(settings_.seed, static_cast<std::uint64_t>(next_index_)));
  }
  if (std::exchange(window_open_, true)) return;
  if (Pager* other = window::open()) other->close_window();
  witness_.forget();
  witness_.start();
  evaluating_ = !at::GradMode::is_enabled();
  held_ = false;
  program_casts_ = at::autocast::is_autocast_enabled(at::kCPU);
  forward_.emplace(observer_, Activity::forward);
  window::enter(this);
}

void Pager::keep_window_for(const c10::TensorImpl& result) {
  const auto* const meta = static_cast<const torch::autograd::AutogradMeta*>(result.autograd_meta());
  if (evaluating_ || meta == nullptr || !meta->grad_fn_) return;
  drop_ended_graphs();
  graphs_.emplace_back(meta->grad_fn_);
}

// The newest first: a node that is referred to keeps what it saved.
void Pager::drop_ended_graphs() {
  while (!graphs_.empty() && graphs_.back().expired()) graphs_.pop_back();
}

bool Pager::over() {
  if (evaluating_) return true;
  if (held_) return false;
  drop_ended_graphs();
  return graphs_.empty();
}

std::optional<at::ScalarType> Pager::autocast(bool with_units) const {
  const bool casts = with_units || !program_casts_ || at::autocast::is_autocast_enabled(at::kCPU);
  return casts ? settings_.autocast : std::nullopt;
}

// Autograd disables gradients in backward; who enables them runs a forward inside it.
void Pager::refuse_recomputation() const {
  if (!settings_.autocast || !at::GradMode::is_enabled()) return;
  throw StateError("a forward runs inside backward while the engine computes in 16 bits",
                   "recomputing activations in backward works in fp32 only in this version");
}

void Pager::close_window() {
  if (!std::exchange(window_open_, false)) return;
  window::leave(this);
  graphs_.clear();
  forward_.reset();
  witness_.stop();
}

}  // namespace zero
